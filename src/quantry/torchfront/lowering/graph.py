"""Lowers a captured torch graph to a float ONNX model."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from quantry.errors import ModelError
from quantry.torchfront.lowering import arithmetic, layers, reshaping
from quantry.torchfront.lowering.graph_writer import ONNX_TYPES, Call, Dimension, GraphWriter, meta_of


@dataclass(frozen=True)
class Scope:
    """The part of the user's model that a node comes from.

    Attributes:
        path: Dotted path of the module; empty for the root.
        classes: Names of the modules' classes, outermost first.
    """

    path: str
    classes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Lowered:
    """The float ONNX model of a captured graph, and what ONNX cannot express.

    Attributes:
        model: The model; initializers have the names of the parameters they come from.
        scopes: The scope of every node, by node name.
        signature: How torch flattens the module's arguments and results; None for plain tensors.
        constants: Results that are not tensors, by position among the flattened results.
        arguments: Arguments that are not tensors, by position among the flattened arguments.
        parameters: Names of the initializers that the user's model trains.
        buffers: Names of the initializers that the user's model does not train.
    """

    model: ir.Model
    scopes: Mapping[str, Scope]
    signature: Any
    constants: Mapping[int, Any]
    arguments: Mapping[int, Any] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()


OPSET, IR_VERSION = 17, 8

LOWERINGS: Mapping[str, Callable[[GraphWriter, Call], Any]] = {
    **layers.LOWERINGS,
    **arithmetic.LOWERINGS,
    **reshaping.LOWERINGS,
}
"""By the operator's name in ``torch.ops.aten``, without the overload and the underscore of in-place variants."""

_ARITHMETIC = {
    operator.add: "Add",
    operator.sub: "Sub",
    operator.mul: "Mul",
    operator.floordiv: "Div",
    operator.truediv: "Div",
}


def lower(module: fx.GraphModule, advice: str = "") -> Lowered:
    """Return the float ONNX model of a captured graph.

    Args:
        module: The result of `capture` or ``torch.export.export(...).module()``; it is not changed.
        advice: What to do about an operator that cannot be lowered; by default, which submodules to capture instead.

    Raises:
        ModelError: The graph does not come from torch.export, or has an operator that cannot be lowered.
    """
    unknown = [node for node in module.graph.nodes if _is_unknown(node)]
    if unknown:
        raise _unknown_error(unknown, module, advice)
    return _Lowering(module).run()


class _Lowering:
    """One pass over a captured graph."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._writer = GraphWriter()
        self._values: dict[fx.Node, Any] = {}
        self._inputs: list[ir.Value] = []
        self._scopes: dict[str, Scope] = {}
        self._outputs: list[ir.Value] = []

    def run(self) -> Lowered:
        result: list[Any] = []
        for node in self._module.graph.nodes:
            written = len(self._writer.nodes)
            scope = _scope(node)
            self._writer.enter(node.name, scope.path)
            if node.op == "output":
                result = list(torch.utils._pytree.tree_leaves(node.args[0]))
            else:
                self._visit(node)
            self._scopes |= {fresh.name or "": scope for fresh in self._writer.nodes[written:]}
        outputs = [self._output(leaf, index) for index, leaf in enumerate(result) if isinstance(leaf, fx.Node)]
        constants = {index: leaf for index, leaf in enumerate(result) if not isinstance(leaf, fx.Node)}
        graph = ir.Graph(
            self._inputs,
            outputs,
            nodes=self._writer.nodes,
            initializers=[value for value in self._writer.initializers.values() if value.uses()],
            opset_imports={"": OPSET},
            name="captured",
        )
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="quantry")
        signature = getattr(self._module.graph._codegen, "pytree_info", None)
        trained = frozenset(name for name, _ in self._module.named_parameters())
        fixed = frozenset(name for name, _ in self._module.named_buffers())
        return Lowered(model, self._scopes, signature, constants, self._arguments(), trained, fixed)

    def _arguments(self) -> dict[int, Any]:
        given = [self._values[node] for node in self._module.graph.nodes if node.op == "placeholder"]
        return {index: value for index, value in enumerate(given) if not isinstance(value, ir.Value)}

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._values[node] = self._input(node)
        elif node.op == "get_attr":
            self._values[node] = self._attribute(node)
        elif node.op == "call_function":
            self._values[node] = self._call(node)
        elif node.users:
            raise ModelError(
                f"a captured graph must consist of operators, got a call of module {node.target!r}; capture the model "
                "with quantry.torch.capture(model, example)"
            )

    def _input(self, node: fx.Node) -> Any:
        tensor = meta_of(node)
        if not isinstance(tensor, torch.Tensor):
            return tensor
        value = ir.Value(
            name=self._writer.fresh(str(node.target)),
            shape=_shape(tensor),
            type=ir.TensorType(ONNX_TYPES[tensor.dtype]),
        )
        self._inputs.append(value)
        return value

    def _attribute(self, node: fx.Node) -> ir.Value:
        name = str(node.target)
        if name not in self._writer.initializers:
            tensor = operator.attrgetter(name)(self._module)
            # A copy, because the module may be trained while this model is in use.
            self._writer.tensor(ir.Tensor(np.array(tensor.detach().cpu().numpy()), name=name))
        return self._writer.initializers[name]

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            container, index = node.args
            return self._values[container][index]
        if node.target in _ARITHMETIC:
            return self._size_arithmetic(node)
        lowering = _lowering(node)
        if lowering is None or _counts_batches(node):
            return None  # an assertion about shapes, or a counter of batches
        result = lowering(self._writer, Call(node, self._values.__getitem__))
        if isinstance(result, ir.Value):
            self._writer.name(result, node.name)
        if node.target._opname.endswith("_") and not node.target._opname.startswith("_"):
            self._values[node.args[0]] = result
        return result

    def _size_arithmetic(self, node: fx.Node) -> Any:
        operands = [self._values[arg] if isinstance(arg, fx.Node) else arg for arg in node.args]
        if not any(isinstance(part, Dimension) for part in operands):
            return node.target(*operands)
        parts = [part.value if isinstance(part, Dimension) else self._writer.ints([part]) for part in operands]
        return Dimension(self._writer.op(_ARITHMETIC[node.target], parts))

    def _output(self, node: fx.Node, index: int) -> ir.Value:
        value = self._values[node]
        if not isinstance(value, ir.Value):
            raise ModelError(f"every result must be a tensor, got a size for result {index}; in {node.name}")
        if value.producer() is None or value in self._outputs:
            self._writer.enter(f"output_{index}", "")
            value = self._writer.op("Identity", [value])
        self._outputs.append(value)
        tensor = meta_of(node)
        value.type = ir.TensorType(ONNX_TYPES[tensor.dtype])
        value.shape = _shape(tensor)
        return value


def _counts_batches(node: fx.Node) -> bool:
    """Return whether a node only counts the batches that a normalization has seen."""
    source = node.args[0] if node.args else None
    return isinstance(source, fx.Node) and source.op == "get_attr" and "num_batches_tracked" in str(source.target)


def _scope(node: fx.Node) -> Scope:
    stack = node.meta.get("nn_module_stack") or {}
    entries = [entry for entry in stack.values() if isinstance(entry, tuple) and "metadata_hook" not in entry[0]]
    classes = tuple(str(kind if isinstance(kind, str) else kind.__name__).rsplit(".", 1)[-1] for _, kind in entries)
    return Scope(entries[-1][0] if entries else "", classes)


def _shape(tensor: torch.Tensor) -> ir.Shape:
    """Return the shape with names for dynamic sizes; a dynamic first axis is the batch."""
    return ir.Shape(
        [
            size if isinstance(size, int) else ("batch" if axis == 0 else str(size))
            for axis, size in enumerate(tensor.shape)
        ]
    )


def _lowering(node: fx.Node) -> Callable[[GraphWriter, Call], Any] | None:
    """Return the function that lowers a node's operator or its in-place variant, or None if there is none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    name = node.target._opname
    return LOWERINGS.get(name) or (None if name.startswith("_") else LOWERINGS.get(name.removesuffix("_")))


def _is_unknown(node: fx.Node) -> bool:
    if node.op != "call_function" or not node.users or _counts_batches(node):
        return False
    return node.target is not operator.getitem and node.target not in _ARITHMETIC and _lowering(node) is None


def _unknown_error(unknown: list[fx.Node], module: fx.GraphModule, advice: str) -> ModelError:
    places: dict[str, str] = {}
    for node in unknown:
        path = _scope(node).path
        places.setdefault(str(node.target), f"in {path!r}" if path else "in the root module")
    found = [f"{name} {place}" for name, place in places.items()]
    shown = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    return ModelError(
        f"every operator must be one that quantry can write as ONNX, got {shown}; "
        f"{advice or _parts_without(unknown, module)}"
    )


def _parts_without(unknown: list[fx.Node], module: fx.GraphModule) -> str:
    """Return advice to capture the largest submodule without the unknown operators."""
    computed = next((path for node in unknown for path in [_scope(node).path] if "parametrizations." in path), None)
    if computed is not None:
        layer, _, name = computed.rpartition("parametrizations.")
        return (
            f"{layer + name.split('.')[0]!r} is computed again at every call; make it a plain weight with "
            "torch.nn.utils.parametrize.remove_parametrizations before the capture"
        )
    wrong = {path for node in unknown for path in _enclosing(_scope(node).path)}
    sizes: dict[str, int] = {}
    for node in module.graph.nodes:
        outer = next((path for path in _enclosing(_scope(node).path) if path not in wrong), None)
        if outer is not None and node.op == "call_function":
            sizes[outer] = sizes.get(outer, 0) + 1
    if not sizes:
        return "excluding the node does not help; put the layers into a submodule without it, and capture that one"
    largest = max(sizes, key=lambda path: sizes[path])
    part = "model" + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in largest.split("."))
    return (
        f"excluding the node does not help; capture submodules without it, as in {part} = capture({part}, its_input), "
        "quantize them, and export each by itself"
    )


def _enclosing(path: str) -> list[str]:
    """Return the paths of the modules around a node, outermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]
