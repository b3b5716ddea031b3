"""Builds the torch graph of a quantized model: ONNX operators as torch functions, with the quantizers of the plan.

::

    quantized activation t:      producer -> t -> quantizers.t -> every reader of t
    weight w of a layer:         w -> quantizers.w -> the layers that the plan names
    layer with a batch norm:     one `BatchNormLayer` with the quantizers of the folded weight and bias
    final module, 8-bit input:   Sigmoid and similar functions are a `LevelTable`

The modules that users train and the parts of a graph that `tune` trains are built here.

This module imports torch, so it is imported inside functions only.
"""

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import fx, nn

from quantry.errors import ModelError
from quantry.execute.batch_norm_layer import BatchNormLayer, BatchNormOf
from quantry.execute.control_flow import CONTROL_FLOW, outer_tensors
from quantry.execute.fake_quantizer import DerivedBias, FakeQuantizer, FloatCast
from quantry.execute.graph_calls import LevelTable, NodeCall, checked_constant, checked_input, is_tabulated
from quantry.execute.interpreter import SEVERAL_RESULTS, TorchCall, interpretable, torch_call
from quantry.execute.quantized_view import QuantizedView, Quantizer, Role
from quantry.facts.operators import BIASED, facts
from quantry.graph.bodies import BODY_ATTRIBUTES, body_of
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.segments import values_used
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.numerics.torch_quantizer import FLOAT_TYPES

_QUANTIZERS = "quantizers"

_COUNTING = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)
"""Types of sizes, indices and masks."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphDefinition:
    """What a quantized graph is built from.

    Attributes:
        model: The float model with the weights to start from; the plan refers to its tensors.
        plan: Which tensors are quantized.
        params: Their scales and zero points to start from.
        batch_norms: Normalizations that can be trained on their own, by the name of the layer's weight.
        arrays: Values of the initializers that `batch_norms` needs and the folded model no longer has.
        frozen: Initializers that are not trained.
        trained: Initializers that are trained wherever they are used: the parameters of the user's model.
        signature: How torch flattens arguments and results; None for plain tensors.
        constants: Results that are not tensors, by position.
        arguments: Arguments that are not tensors, by position.
        final: Whether the module will only be evaluated and must agree with onnxruntime bit for bit.
    """

    model: FloatModel
    plan: QuantPlan
    params: QuantParams
    batch_norms: Mapping[str, BatchNormOf] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()
    signature: Any = None
    constants: Mapping[int, Any] = field(default_factory=dict)
    arguments: Mapping[int, Any] = field(default_factory=dict)
    final: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_norms", "arrays", "constants", "arguments"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


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

    Args:
        definition: What is built.
        joins_samples: Whether a model of batch size 1 may get several samples at once, on any device.

    Attributes:
        root: The module that contains parameters, buffers, quantizers and layers.
        graph: The graph.
        view: Which quantizer each reader of each tensor reads through.
    """

    def __init__(self, definition: GraphDefinition, *, joins_samples: bool = False) -> None:
        self._joins_samples = joins_samples
        self._inputs: dict[ir.Value, None] = {}
        self._trained = definition.trained
        self.root = nn.Module()
        self.graph = fx.Graph()
        self._definition = definition
        self.view = QuantizedView(definition.plan, definition.params)
        self._paths: dict[str, str] = {}
        self._leaves: set[str] = set()
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
        for position in range(len(inputs) + len(fixed)):
            if position in fixed:
                argument = self.graph.placeholder(f"fixed_{position}")
                self.graph.call_function(checked_constant, (argument, fixed[position], position))
            else:
                value = inputs.pop(0)
                argument = self.graph.placeholder(_identifier(value.name or ""))
                self._add(value, self.graph.call_function(checked_input, (argument, value.name, _sizes(value))))
        for node in graph:
            self._node(node)
        leaves: list[Any] = [self._tensor(value, "") for value in graph.outputs]
        for index, constant in sorted(self._definition.constants.items()):
            leaves.insert(index, constant)
        plain = self._definition.signature is None and len(leaves) == 1
        self.graph.output(leaves[0] if plain else tuple(leaves))
        if self._definition.signature is not None:
            self.graph.set_codegen(fx.graph._PyTreeCodeGen(self._definition.signature))

    def build_part(
        self, nodes: Sequence[ir.Node], outputs: Collection[str], trained: Collection[str]
    ) -> tuple[str, ...]:
        """Write some nodes as a graph that returns a tuple of tensors, as their readers see them.

        Args:
            nodes: The nodes, in order.
            outputs: Names of tensors that they compute.
            trained: Initializers that are trained.

        Returns:
            The names of the graph's arguments: what the nodes read but do not compute, before it is quantized.
        """
        self._trained = frozenset(trained)
        computed = {value.name: value for node in nodes for value in node.outputs}
        values = dict.fromkeys(value for node in nodes for value in values_used(node))
        self._inputs = {value: None for value in values if value.name not in computed and not value.is_initializer()}
        for number, value in enumerate(self._inputs):
            self._add(value, self.graph.placeholder(f"input_{number}"))
        for node in nodes:
            self._node(node)
        self.graph.output(tuple(self._tensor(computed[name], "") for name in outputs))
        return tuple(value.name or "" for value in self._inputs)

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
        elif (
            self._joins_samples
            or call.computed
            or any(
                value is not None and value.dtype in _COUNTING and call.reads(index)
                for index, value in enumerate(node.inputs)
            )
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
        path = self.view.path(names[0], node.name or "") if len(names) == 1 else ()
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
        return torch_call(node, self._definition.model.opset, keep_batch=self._joins_samples)

    def _control_flow(self, node: ir.Node) -> None:
        bodies = [body_of(node, attribute) for attribute in BODY_ATTRIBUTES[node.op_type]]
        used = dict.fromkeys(value for body in bodies for value in outer_tensors(body))
        read = (*node.inputs, *used)
        outer = [None if value is None else self._tensor(value, node.name or "") for value in read]
        module = CONTROL_FLOW[node.op_type](node, [self._body(body, (*body.inputs, *used)) for body in bodies])
        path = self._attach_module(f"operators.{_identifier(node.name or node.op_type)}", module)
        self._add_results(node, self.graph.call_module(path, tuple(outer)))

    def _body(self, body: ir.Graph, arguments: Sequence[ir.Value]) -> fx.Graph:
        """Build a graph inside a node."""
        enclosing = self.graph, self._tensors, self._constants, self._for_reader
        self.graph, self._tensors, self._constants, self._for_reader = fx.Graph(), {}, {}, {}
        for number, value in enumerate(arguments):
            self._tensors[value.name or ""] = self.graph.placeholder(f"argument_{number}")
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
        holder, dot, _ = weight.rpartition(".")
        path = self._attach_module(f"{holder}{dot}quantized_layer", layer)
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
        quantizer = self.view.get(name)
        # Quantizing again what was only moved, with the same scale, would change nothing and cost time.
        # An argument of a part may have been computed with a scale that was trained since.
        if quantizer is not None and (value in self._inputs or not self.view.keeps_grid(value)):
            node = self._quantized(quantizer.source, node)
        self._tensors[name] = node
        for conversion in self.view.conversions:
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
        trained = name in self._trained or any(use.idx in facts(use.node).learned for use in value.uses())
        plain = self._attribute(name, value.const_value.numpy(), trained=trained)
        quantizer = self.view.get(name)
        if quantizer is None or not quantizer.reads(reader):
            return plain
        if name not in self._constants:
            self._constants[name] = self._quantized(name, plain, self._constant_quantizer(name))
        return self._constants[name]

    def _quantized(self, key: str, node: fx.Node, quantizer: nn.Module | None = None) -> fx.Node:
        if key not in self._attached:
            planned = self.view.get(key)
            assert planned is not None
            module = quantizer or self._make(planned, constant=False)
            self._quantizers[key] = module
            self._attached[key] = self._attach_module(f"{_QUANTIZERS}.{_identifier(key)}", module)
        return self.graph.call_module(self._attached[key], (node,))

    def _constant_quantizer(self, name: str) -> nn.Module:
        quantizer = self.view.get(name)
        if quantizer is None:
            return nn.Identity()
        if quantizer.derived is not None:
            source, weight = (self.view.source(name) for name in (quantizer.derived.input, quantizer.derived.weight))
            return DerivedBias(self._found(source), self._found(weight))
        return self._quantizers.setdefault(name, self._make(quantizer, constant=True))

    def _found(self, name: str) -> FakeQuantizer:
        quantizer = self._quantizers[name]
        assert isinstance(quantizer, FakeQuantizer)
        return quantizer

    def _make(self, quantizer: Quantizer, *, constant: bool) -> nn.Module:
        if quantizer.dtype in FLOAT_TYPES:
            return FloatCast(quantizer.dtype)
        if quantizer.params is None:
            return nn.Identity()
        return FakeQuantizer(quantizer.params, quantizer.spec, constant=constant)

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
            self._leaves.add(path)
        return self.graph.get_attr(self._paths[name])

    def _attach_module(self, preferred: str, module: nn.Module) -> str:
        path = self._free(preferred)
        holder, leaf = self._holder(path)
        holder.add_module(leaf, module)
        return path

    def _holder(self, path: str) -> tuple[nn.Module, str]:
        holder = self.root
        *parents, leaf = path.split(".")
        for parent in parents:
            child = getattr(holder, parent, None)
            if child is None:
                child = nn.Module()
                holder.add_module(parent, child)
            holder = child
        return holder, leaf

    def _free(self, preferred: str) -> str:
        """Return an unused dotted path that is neither inside nor above a used one."""
        path, count = re.sub(r"[^0-9A-Za-z_.]", "_", preferred).strip("."), 1
        # A part named "to" or "train" would hide a method of the module that holds it.
        names = [f"{name}_" if hasattr(nn.Module, name) else name for name in path.split(".") if name]
        path = ".".join(names) or "constant"
        base = path
        while path in self._taken or not self._leaves.isdisjoint(
            path[: dot.start()] for dot in re.finditer(r"\.", path)
        ):
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
