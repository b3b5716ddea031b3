"""Builds the torch graph of a quantized model: ONNX operators as torch functions, with the quantizers of the plan.

::

    quantized activation t:      producer -> t -> quantizers.t -> every reader of t
    weight w of a layer:         w -> quantizers.w -> the layers that the plan names
    layer with a batch norm:     one `BatchNormLayer` with the quantizers of the folded weight and bias
    final module, 8-bit input:   Sigmoid and similar functions are a `LevelTable`
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, fx, nn

from quantry.errors import DataError, ModelError, RecipeError
from quantry.execute.interpreter import SEVERAL_RESULTS, TorchCall, interpretable, torch_call
from quantry.execute.quantized_view import QuantizedView, Quantizer, Role
from quantry.facts.operators import BIASED, facts, operators_where
from quantry.graph.bodies import BODY_ATTRIBUTES, body_of
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_quantizer import FLOAT_TYPES
from quantry.recipe import PerChannel, PerTensor
from quantry.runtime.sessions import run_session, simulation_session
from quantry.torchfront.batch_norm_layer import BatchNormLayer
from quantry.torchfront.control_flow import CONTROL_FLOW, outer_tensors
from quantry.torchfront.fake_quantizer import DerivedBias, FakeQuantizer, FloatCast
from quantry.torchfront.module_definition import BatchNormOf, ModuleDefinition

TABULATED = operators_where(lambda row: row.torch and row.operands == 1 and row.homogeneous is False)
"""Functions of one tensor for which torch and onnxruntime may return different last bits."""


class LevelTable(nn.Module):  # type: ignore[misc]
    """A function of an 8-bit tensor as a lookup table with at most 256 entries, computed by onnxruntime.

    torch and onnxruntime compute Sigmoid with different polynomials. A value near the middle between two levels of the
    output would be rounded to either of them.

    Attributes:
        values: float32 [levels], the function of each level of the input, lowest level first.
    """

    def __init__(self, node: ir.Node, params: TensorParams, opset: int) -> None:
        super().__init__()
        levels = np.arange(params.lowest, params.highest + 1)
        inputs = (levels - int(params.zero_point)).astype(np.float32) * params.scale
        self.register_buffer("values", torch.from_numpy(_computed(node, inputs, opset)))
        self.register_buffer("scale", torch.tensor(params.scale))
        self._shift = int(params.zero_point) - params.lowest

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of quantized values."""
        return self.values[torch.round(x / self.scale).long() + self._shift]


class NodeCall(nn.Module):  # type: ignore[misc]
    """A node whose sizes or indices are computed while the model runs, or may be on another device than its data."""

    def __init__(self, call: TorchCall) -> None:
        super().__init__()
        self._call = call

    def forward(self, *inputs: Tensor | None) -> Any:
        """Return the result of the node for all its inputs."""
        device = next(
            (str(value.device) for value in inputs if value is not None and value.device.type != "cpu"), "cpu"
        )
        return self._call(self._call.on_device(inputs, device))


def is_tabulated(node: ir.Node, params: TensorParams | None) -> bool:
    """Return whether a node can be replaced by a lookup table."""
    return node.op_type in TABULATED and params is not None and params.axis is None and params.dtype.bits <= 8


def _computed(node: ir.Node, inputs: np.ndarray, opset: int) -> np.ndarray:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(inputs.shape))
    copy = ir.node(node.op_type, [x], attributes=dict(node.attributes))
    result = copy.outputs[0]
    result.name, result.type, result.shape = "y", x.type, x.shape
    graph = ir.Graph([x], [result], nodes=[copy], opset_imports={"": opset}, name="table")
    session = simulation_session(ir.Model(graph, ir_version=8), threads=1)
    return run_session(session, {"x": inputs})["y"]


def checked_input(value: Tensor, name: str, sizes: Sequence[int | None] | None) -> Tensor:
    """Return an input unchanged if it has the sizes that the graph was captured with.

    The graph contains numbers that the capture computed from the sizes of its example, such as the windows of pools.
    With other sizes it would silently compute something else than the user's model.

    Args:
        value: The input.
        name: Its name.
        sizes: The required sizes, None for dynamic ones; None if nothing is known.

    Raises:
        DataError: It is not a tensor, or has another rank or size.
    """
    if not isinstance(value, Tensor):
        raise DataError(f"input {name!r} must be a tensor, got {type(value).__name__}; in QuantizedModule")
    if sizes is None or (
        len(value.shape) == len(sizes)
        and all(wanted is None or wanted == given for wanted, given in zip(sizes, value.shape, strict=True))
    ):
        return value
    shown = ", ".join("any" if size is None else str(size) for size in sizes)
    raise DataError(
        f"input {name!r} must have the sizes it was captured with, [{shown}], got {list(value.shape)}; capture the "
        "model with dynamic_shapes for sizes that vary; in QuantizedModule"
    )


def checked_constant(value: object, captured: object, place: int) -> None:
    """Raise if an argument that is not a tensor differs from the captured one, which is a constant of the graph.

    Args:
        value: The argument.
        captured: Its value at the capture.
        place: Its position among the arguments.

    Raises:
        DataError: The values differ.
    """
    if type(value) is not type(captured) or value != captured:
        raise DataError(
            f"argument {place} must be what it was at the capture, {captured!r}, got {value!r}; capture the model "
            "again with the new value; in QuantizedModule"
        )


_QUANTIZERS = "quantizers"

_COUNTING = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)
"""Types of sizes, indices and masks."""


@dataclass(frozen=True)
class Layout:
    """Dotted paths in a built module, by the names of tensors in its definition.

    Attributes:
        tensors: Initializers: parameters and buffers.
        quantizers: Quantizers, by the tensor whose scale they hold.
        layers: `BatchNormLayer` modules, by the name of the weight.
    """

    tensors: Mapping[str, str]
    quantizers: Mapping[str, str]
    layers: Mapping[str, str]


class GraphBuilder:
    """Builds one module; create a new builder for each.

    Attributes:
        root: The module that contains parameters, buffers, quantizers and layers.
        graph: The graph.
    """

    def __init__(self, definition: ModuleDefinition) -> None:
        self.root = nn.Module()
        self.graph = fx.Graph()
        self._definition = definition
        self._view = QuantizedView(definition.plan, definition.params)
        self._paths: dict[str, str] = {}
        self._taken = {_QUANTIZERS}
        self._tensors: dict[str, fx.Node] = {}
        self._constants: dict[str, fx.Node] = {}
        self._for_reader: dict[tuple[str, str], fx.Node] = {}
        self._quantizers: dict[str, nn.Module] = {}
        self._attached: dict[str, str] = {}
        self._layers: dict[str, str] = {}
        self.root.add_module(_QUANTIZERS, nn.Module())

    def build(self) -> None:
        """Write the graph."""
        graph = self._definition.model.model.graph
        inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        fixed = self._definition.arguments
        for place in range(len(inputs) + len(fixed)):
            if place in fixed:
                given = self.graph.placeholder(f"fixed_{place}")
                self.graph.call_function(checked_constant, (given, fixed[place], place))
            else:
                value = inputs.pop(0)
                given = self.graph.placeholder(_identifier(value.name or ""))
                self._add(value, self.graph.call_function(checked_input, (given, value.name, _sizes(value))))
        for node in graph:
            self._node(node)
        leaves: list[Any] = [self._tensor(value, "") for value in graph.outputs]
        for index, constant in sorted(self._definition.constants.items()):
            leaves.insert(index, constant)
        plain = self._definition.signature is None and len(leaves) == 1
        self.graph.output(leaves[0] if plain else tuple(leaves))
        if self._definition.signature is not None:
            self.graph.set_codegen(fx.graph._PyTreeCodeGen(self._definition.signature))

    @property
    def layout(self) -> Layout:
        """The paths of all parts."""
        return Layout(dict(self._paths), dict(self._attached), dict(self._layers))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, node: ir.Node) -> None:
        if self._definition.final and is_tabulated(node, self._levels(node)):
            self._tabulated(node)
            return
        if node.op_type in CONTROL_FLOW and node.domain == "":
            self._control_flow(node)
            return
        call = self._call(node)
        norm = self._norm_of(node)
        if norm is not None:
            result = self._batch_norm_layer(node, call, norm)
        elif call.computed or any(
            value is not None and value.dtype in _COUNTING and call.reads(index)
            for index, value in enumerate(node.inputs)
        ):
            inputs = (value if call.reads(index) else None for index, value in enumerate(node.inputs))
            tensors = tuple(None if value is None else self._tensor(value, node.name or "") for value in inputs)
            path = self._attach_module(f"operators.{_identifier(node.name or node.op_type)}", NodeCall(call))
            result = self.graph.call_module(path, tensors)
        else:
            inputs = (node.inputs[index] for index in call.tensors)
            tensors = tuple(None if value is None else self._tensor(value, node.name or "") for value in inputs)
            # The same bits as onnxruntime; training prefers torch's own kernel, which is faster.
            order = {"in_order": True} if self._definition.final and node.op_type == "Resize" else {}
            result = self.graph.call_function(call.function, tensors, {**call.options, **order})
        self._add_results(node, result)

    def _levels(self, node: ir.Node) -> TensorParams | None:
        """Return the parameters of a node's input if it has one, quantized input."""
        names = [value.name or "" for value in node.inputs if value is not None]
        path = self._view.path(names[0], node.name or "") if len(names) == 1 else ()
        return path[0].params if len(path) == 1 and path[0].role is Role.ACTIVATION else None

    def _tabulated(self, node: ir.Node) -> None:
        params, source = self._levels(node), node.inputs[0]
        assert params is not None
        assert source is not None
        table = LevelTable(node, params, self._definition.model.opset)
        path = self._attach_module(f"operators.{_identifier(node.name or node.op_type)}", table)
        self._add_results(node, self.graph.call_module(path, (self._tensor(source, node.name or ""),)))

    def _call(self, node: ir.Node) -> TorchCall:
        reason = interpretable(node)
        if reason is not None:
            raise ModelError(
                f"every operator must be one that can be trained in torch, got {node.op_type}: {reason}; node "
                f"{node.name!r}; capture a submodule without it"
            )
        return torch_call(node, self._definition.model.opset)

    def _control_flow(self, node: ir.Node) -> None:
        bodies = [body_of(node, attribute) for attribute in BODY_ATTRIBUTES[node.op_type]]
        used = dict.fromkeys(value for body in bodies for value in outer_tensors(body))
        given = (*node.inputs, *used)
        outer = [None if value is None else self._tensor(value, node.name or "") for value in given]
        module = CONTROL_FLOW[node.op_type](node, [self._body(body, (*body.inputs, *used)) for body in bodies])
        path = self._attach_module(f"operators.{_identifier(node.name or node.op_type)}", module)
        self._add_results(node, self.graph.call_module(path, tuple(outer)))

    def _body(self, body: ir.Graph, given: Sequence[ir.Value]) -> fx.Graph:
        """Build a graph inside a node."""
        enclosing = self.graph, self._tensors, self._constants, self._for_reader
        self.graph, self._tensors, self._constants, self._for_reader = fx.Graph(), {}, {}, {}
        for number, value in enumerate(given):
            self._tensors[value.name or ""] = self.graph.placeholder(f"given_{number}")
        for node in body:
            self._node(node)
        self.graph.output(tuple(self._tensor(value, "") for value in body.outputs))
        built = self.graph
        self.graph, self._tensors, self._constants, self._for_reader = enclosing
        return built

    def _add_results(self, node: ir.Node, result: fx.Node) -> None:
        if len(node.outputs) == 1 and node.op_type not in SEVERAL_RESULTS:
            self._add(node.outputs[0], result)
            return
        for index, output in enumerate(node.outputs):
            if output.name:
                self._add(output, self.graph.call_function(operator.getitem, (result, index)))

    def _norm_of(self, node: ir.Node) -> BatchNormOf | None:
        if node.op_type not in BIASED or node.inputs[1] is None:
            return None
        return self._definition.batch_norms.get(node.inputs[1].name or "")

    def _batch_norm_layer(self, node: ir.Node, call: TorchCall, norm: BatchNormOf) -> fx.Node:
        weight, bias = (value.name or "" for value in node.inputs[1:3] if value is not None)
        layer = BatchNormLayer(
            call.function,
            call.options,
            (norm.epsilon, norm.momentum),
            self._constant_quantizer(weight),
            self._constant_quantizer(bias),
        )
        path = self._attach_module(f"{_parent(weight)}quantized_layer", layer)
        self._layers[weight] = path
        self._attached |= {weight: f"{path}.weight_quantizer", bias: f"{path}.bias_quantizer"}
        names = (weight, norm.layer_bias, *norm.norm)
        arguments = [
            None if name is None else self._attribute(name, self._definition.arrays[name], trained=index < 4)
            for index, name in enumerate(names)
        ]
        assert node.inputs[0] is not None
        return self.graph.call_module(path, (self._tensor(node.inputs[0], node.name or ""), *arguments))

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _add(self, value: ir.Value, node: fx.Node) -> None:
        name = value.name or ""
        quantizer = self._view.get(name)
        # Quantizing again what was only moved, with the same scale, would change nothing and cost time.
        if quantizer is not None and not self._view.keeps_grid(value):
            node = self._quantized(quantizer.source, node)
        self._tensors[name] = node
        for conversion in self._view.conversions:
            if conversion.tensor == name:
                converted = self._quantized(conversion.name, node)
                self._for_reader |= {(name, reader): converted for reader in conversion.readers or ()}

    def _tensor(self, value: ir.Value, reader: str) -> fx.Node:
        name = value.name or ""
        if value.const_value is not None:
            return self._constant(value, reader)
        return self._for_reader.get((name, reader), self._tensors[name])

    def _constant(self, value: ir.Value, reader: str) -> fx.Node:
        assert value.const_value is not None
        name = value.name or ""
        trained = name in self._definition.trained or any(use.idx in facts(use.node).learned for use in value.uses())
        plain = self._attribute(name, value.const_value.numpy(), trained=trained)
        quantizer = self._view.get(name)
        if quantizer is None or not quantizer.reads(reader):
            return plain
        if name not in self._constants:
            self._constants[name] = self._quantized(name, plain, self._constant_quantizer(name))
        return self._constants[name]

    def _quantized(self, key: str, node: fx.Node, quantizer: nn.Module | None = None) -> fx.Node:
        if key not in self._attached:
            known = quantizer or self._activation_quantizer(key)
            self._quantizers[key] = known
            self._attached[key] = self._attach_module(f"{_QUANTIZERS}.{_identifier(key)}", known)
        return self.graph.call_module(self._attached[key], (node,))

    def _activation_quantizer(self, key: str) -> nn.Module:
        quantizer = self._view.get(key)
        assert quantizer is not None
        return self._make(quantizer, constant=False)

    def _constant_quantizer(self, name: str) -> nn.Module:
        quantizer = self._view.get(name)
        if quantizer is None:
            return nn.Identity()
        if quantizer.derived is not None:
            source, weight = (self._view.source(name) for name in (quantizer.derived.input, quantizer.derived.weight))
            return DerivedBias(self._found(source), self._found(weight))
        return self._kept(name, self._make(quantizer, constant=True))

    def _kept(self, name: str, quantizer: nn.Module) -> nn.Module:
        self._quantizers.setdefault(name, quantizer)
        return self._quantizers[name]

    def _found(self, name: str) -> FakeQuantizer:
        quantizer = self._quantizers[name]
        assert isinstance(quantizer, FakeQuantizer)
        return quantizer

    def _make(self, quantizer: Quantizer, *, constant: bool) -> nn.Module:
        spec = quantizer.spec
        if spec.dtype in FLOAT_TYPES:
            return FloatCast(spec.dtype)
        if not spec.dtype.is_integer or not isinstance(spec.granularity, PerTensor | PerChannel):
            raise RecipeError(
                f"the torch path quantizes to integers per tensor or per channel and to 16-bit floats, got "
                f"{spec.dtype.value} with {spec.granularity} for {quantizer.name!r}; use quantry.quantize on the "
                "exported model"
            )
        assert quantizer.params is not None
        return FakeQuantizer(quantizer.params, spec, constant=constant)

    # -- attributes ----------------------------------------------------------------------------------------------------

    def _attribute(self, name: str, array: Any, *, trained: bool) -> fx.Node:
        if name not in self._paths:
            tensor = torch.from_numpy(np.array(array))
            path = self._free(name)
            holder, leaf = self._holder(path)
            if trained and tensor.is_floating_point() and name not in self._definition.frozen:
                holder.register_parameter(leaf, nn.Parameter(tensor))
            else:
                holder.register_buffer(leaf, tensor)
            self._paths[name] = path
        return self.graph.get_attr(self._paths[name])

    def _attach_module(self, wanted: str, module: nn.Module) -> str:
        path = self._free(wanted)
        holder, leaf = self._holder(path)
        holder.add_module(leaf, module)
        return path

    def _holder(self, path: str) -> tuple[nn.Module, str]:
        holder = self.root
        *parents, leaf = path.split(".")
        for part in parents:
            child = getattr(holder, part, None)
            if child is None:
                child = nn.Module()
                holder.add_module(part, child)
            holder = child
        return holder, leaf

    def _free(self, wanted: str) -> str:
        """Return an unused dotted path that is neither inside nor above a used one."""
        path, count = re.sub(r"[^0-9A-Za-z_.]", "_", wanted).strip("."), 1
        # A part named "to" or "train" would hide a method of the module that holds it.
        parts = [f"{part}_" if hasattr(nn.Module, part) else part for part in path.split(".") if part]
        path = ".".join(parts) or "constant"
        base = path
        while path in self._taken or any(path.startswith(f"{other}.") for other in self._paths.values()):
            count += 1
            path = f"{base.replace('.', '_') if path != base else base}_{count}"
        self._taken |= {path, *(path[: match.start()] for match in re.finditer(r"\.", path))}
        return path


def _sizes(value: ir.Value) -> list[int | None] | None:
    """Return the required sizes of an input, None for dynamic ones; None if the rank is not known."""
    if value.shape is None:
        return None
    # The batch size is not checked: a graph that needs a certain one fails with its own message.
    return [size if axis and isinstance(size, int) else None for axis, size in enumerate(value.shape)]


def _identifier(name: str) -> str:
    cleaned = re.sub(r"\W", "_", name)
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def _parent(name: str) -> str:
    return name.rpartition(".")[0] + "." if "." in name else ""
