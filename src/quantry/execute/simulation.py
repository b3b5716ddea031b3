"""The quantized model as a float graph that onnxruntime runs: pairs around operators, weights rounded in place.

A tensor is quantized once, behind its producer, and restored before each reader::

    producer -> t -> QuantizeLinear -> t_integers -> DequantizeLinear -> reader
                                                  -> DequantizeLinear -> another reader

so that what is passed from one part of the graph to the next is integers, a quarter of the memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.graph.edit import FreshNames
from quantry.graph.quant_plan import QuantPlan, SharedRange
from quantry.graph.weights import new_initializer, tensor_from_array
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType

CONTRIB = "com.microsoft"
"""The domain whose pairs take 16-bit types at any opset."""

_CASTS = {DataType.FLOAT16: ir.DataType.FLOAT16, DataType.BFLOAT16: ir.DataType.BFLOAT16}
# Types that arrays of numpy have; narrower ones are clipped first and held in one of these.
_HELD = {True: ir.DataType.INT8, False: ir.DataType.UINT8}
_WIDE = {DataType.INT16: ir.DataType.INT16, DataType.UINT16: ir.DataType.UINT16}


@dataclass(eq=False)
class Simulation:
    """A copy of the model in which activations are quantized and weights are on their grids.

    Attributes:
        model: The copy.
        integers: Names of the tensors of integers, by the name of the tensor they stand for.
        plan: Which tensors are quantized.
        params: With which scales and zero points.
        left_float: Names of planned tensors that are not simulated, because their type has no such form here.
        rounded: Names of the rounded constants, by the name of the float one.
        preludes: How many nodes stand before a node, of those that restore what it reads, by its name.
    """

    model: ir.Model
    plan: QuantPlan
    params: QuantParams
    integers: dict[str, str] = field(default_factory=dict)
    left_float: list[str] = field(default_factory=list)
    rounded: dict[str, str] = field(default_factory=dict)
    preludes: dict[str, int] = field(default_factory=dict)

    def set_constant(self, name: str, values: npt.NDArray[np.float32]) -> None:
        """Give a weight or a bias new values; they are rounded as the emit stage will round them."""
        target = self.rounded.get(name, name)
        params = self.params.tensors.get(name) if name in self.rounded else None
        kept = values if params is None else fake_quantize(values, params)
        self.model.graph.initializers[target].const_value = tensor_from_array(kept, target)


def simulate(
    model: ir.Model,
    plan: QuantPlan,
    params: QuantParams,
    constants: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> Simulation:
    """Return the simulation of a quantized model.

    Args:
        model: The float model; it is left as it was.
        plan: Which tensors are quantized.
        params: With which scales and zero points.
        constants: Values of weights and biases that differ from the model's.
    """
    copy = model.clone()
    copy.opset_imports.setdefault(CONTRIB, 1)
    copy.graph.opset_imports.setdefault(CONTRIB, 1)
    simulation = Simulation(copy, plan, params)
    writer = _Writer(simulation)
    for tensor in plan.activations:
        writer.quantize(tensor)
    for name, conversion in plan.conversions.items():
        writer.convert(name, conversion.tensor, frozenset(conversion.readers))
    for name, weight in plan.weights.items():
        writer.round_constant(name, frozenset(weight.users))
    for name in plan.biases:
        writer.round_constant(name, None)
    for name, values in (constants or {}).items():
        simulation.set_constant(name, values)
    return simulation


class _Writer:
    """Edits the copy."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._graph = simulation.model.graph
        self._names = FreshNames(simulation.model)
        outputs = (value for node in self._graph for value in node.outputs)
        self._values = {value.name: value for value in (*self._graph.inputs, *outputs) if value.name}
        self._readers: dict[str, list[tuple[ir.Node, int]]] = {}

    def quantize(self, tensor: str) -> None:
        """Quantize a tensor behind its producer and restore it before each reader."""
        value = self._values[tensor]
        self._readers[tensor] = [(use.node, use.idx) for use in value.uses() if use.node.graph is self._graph]
        pair = self._pair(tensor, self._planned_type(tensor))
        if pair is None:
            self._simulation.left_float.append(tensor)
            return
        chain = pair.quantize(value)
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], chain)
        else:
            self._graph.insert_after(producer, chain)
        integers = chain[-1].outputs[0]
        self._simulation.integers[tensor] = integers.name or ""
        for reader, index in self._readers[tensor]:
            self._read_through(reader, index, [pair.restore(integers)])

    def convert(self, name: str, tensor: str, readers: frozenset[str]) -> None:
        """Quantize a tensor once more before some of its readers."""
        pair = self._pair(name, self._simulation.plan.conversions[name].spec.dtype)
        if pair is None:
            self._simulation.left_float.append(name)
            return
        for reader, index in self._readers[tensor]:
            value = reader.inputs[index]
            if reader.name in readers and value is not None:
                chain = pair.quantize(value)
                self._read_through(reader, index, [*chain, pair.restore(chain[-1].outputs[0])])

    def round_constant(self, name: str, users: frozenset[str] | None) -> None:
        """Round an initializer for those who read it as integers."""
        value = self._graph.initializers[name]
        params = self._simulation.params.tensors.get(name)
        if params is None or value.const_value is None:
            return
        rounded = self._constant(f"{name}_rounded", fake_quantize(value.const_value.numpy(), params))
        for use in tuple(value.uses()):
            if use.node.graph is self._graph and (users is None or use.node.name in users):
                use.node.replace_input_with(use.idx, rounded)
        self._simulation.rounded[name] = rounded.name or ""

    def _read_through(self, reader: ir.Node, index: int, chain: list[ir.Node]) -> None:
        self._graph.insert_before(reader, chain)
        preludes, name = self._simulation.preludes, reader.name or ""
        preludes[name] = preludes.get(name, 0) + len(chain)
        reader.replace_input_with(index, chain[-1].outputs[0])

    def _planned_type(self, tensor: str) -> DataType:
        planned = self._simulation.plan.activations[self._simulation.plan.root(tensor)]
        assert not isinstance(planned, SharedRange)
        return planned.spec.dtype

    def _pair(self, name: str, dtype: DataType) -> "_Pair | None":
        """Return how a tensor is quantized and restored, or None where its type has no such form."""
        if dtype in _CASTS:
            there, back = _CASTS[dtype], ir.DataType.FLOAT
            return _Pair(
                lambda value: [self._node("Cast", [value], {"to": there.value}, there)],
                lambda value: self._node("Cast", [value], {"to": back.value}, back),
            )
        params = self._simulation.params.tensors.get(name)
        if params is None or dtype.bits > 16 or params.axis is not None:
            return None
        held = _WIDE.get(dtype, _HELD[dtype.is_signed])
        scale = self._constant(f"{name}_scale", np.asarray(params.scale))
        zero_point = self._constant(f"{name}_zero_point", params.zero_point.astype(held.numpy()))

        def quantize(value: ir.Value) -> list[ir.Node]:
            clip = [self._clip(name, value, params)] if dtype.bits < 8 or params.limits is not None else []
            source = clip[0].outputs[0] if clip else value
            return [*clip, self._node("QuantizeLinear", [source, scale, zero_point], {}, held, CONTRIB)]

        def restore(integers: ir.Value) -> ir.Node:
            return self._node("DequantizeLinear", [integers, scale, zero_point], {}, ir.DataType.FLOAT, CONTRIB)

        return _Pair(quantize, restore)

    def _clip(self, name: str, value: ir.Value, params: TensorParams) -> ir.Node:
        levels = np.array([params.lowest, params.highest]) - params.zero_point
        low, high = (levels * params.scale.astype(np.float64)).astype(np.float32)
        bounds = [self._constant(f"{name}_low", np.asarray(low)), self._constant(f"{name}_high", np.asarray(high))]
        return self._node("Clip", [value, *bounds], {}, ir.DataType.FLOAT)

    def _constant(self, wanted: str, values: npt.NDArray[np.generic]) -> ir.Value:
        value = new_initializer(self._names.value(wanted), values)
        self._graph.register_initializer(value)
        return value

    def _node(
        self, operator: str, inputs: list[ir.Value], attributes: dict[str, int], dtype: ir.DataType, domain: str = ""
    ) -> ir.Node:
        name = self._names.value(f"{inputs[0].name}_{operator}")
        output = ir.Value(name=name, type=ir.TensorType(dtype), shape=inputs[0].shape)
        converted = [ir.AttrInt64(key, value) for key, value in attributes.items()]
        return ir.Node(domain, operator, inputs, converted, outputs=[output], name=self._names.node(name))


@dataclass(frozen=True)
class _Pair:
    """Makes the nodes that quantize a value, and the node that restores what the last of them gives."""

    quantize: Callable[[ir.Value], list[ir.Node]]
    restore: Callable[[ir.Value], ir.Node]
