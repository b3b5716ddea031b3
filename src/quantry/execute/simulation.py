"""The quantized model as a graph that onnxruntime runs in float: Q/DQ pairs around operators, rounded constants.

A tensor is quantized once, after its producer, and dequantized in front of each reader::

    producer -> t -> QuantizeLinear -> t_integers -> DequantizeLinear -> reader
                                                  -> DequantizeLinear -> another reader

What one part of the graph passes to the next is then integers, which take a quarter of the memory of floats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.execute.quantized_view import QuantizedView, Quantizer
from quantry.graph.edit import FreshNames
from quantry.graph.passes import convert_opset
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.weights import new_initializer, tensor_from_array
from quantry.numerics.float8 import CONTAINERS
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType

CONTRIB = "com.microsoft"
"""The domain whose Q/DQ operators accept 16-bit types at any opset."""

_CASTS = {DataType.FLOAT16: ir.DataType.FLOAT16, DataType.BFLOAT16: ir.DataType.BFLOAT16}
# numpy has no 4-bit arrays: narrower types are clipped first and stored in one byte.
_BYTE = {True: ir.DataType.INT8, False: ir.DataType.UINT8}
_FLOAT8 = {
    DataType.FLOAT8E4M3FN: ir.DataType.FLOAT8E4M3FN,
    DataType.FLOAT8E5M2: ir.DataType.FLOAT8E5M2,
}
_FLOAT8_SINCE_OPSET = 19
_WIDE = {DataType.INT16: ir.DataType.INT16, DataType.UINT16: ir.DataType.UINT16}


@dataclass(eq=False)
class Simulation:
    """A copy of the model with quantized activations and rounded constants.

    Attributes:
        model: The copy.
        view: What is quantized, and how.
        integers: Names of the integer tensors, by the name of the tensor they encode.
        left_float: Names of planned tensors that stay float here, because onnxruntime has no pair for their type.
        rounded: Names of the rounded constants, by the name of the float constant.
        preludes: By name of a node, how many nodes in front of it dequantize what it reads.
    """

    model: ir.Model
    view: QuantizedView
    integers: dict[str, str] = field(default_factory=dict)
    left_float: list[str] = field(default_factory=list)
    rounded: dict[str, str] = field(default_factory=dict)
    preludes: dict[str, int] = field(default_factory=dict)

    def set_constant(self, name: str, values: npt.NDArray[np.float32]) -> None:
        """Replace the values of a weight or a bias; they are rounded as the emit stage will round them."""
        target = self.rounded.get(name, name)
        rounded = self.view.round(name, values) if name in self.rounded else values
        self.model.graph.initializers[target].const_value = tensor_from_array(rounded, target)


def simulate(
    model: ir.Model,
    plan: QuantPlan,
    params: QuantParams,
    constants: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> Simulation:
    """Return the simulation of a quantized model.

    Args:
        model: The float model; not modified.
        plan: Which tensors are quantized.
        params: With which scales and zero points.
        constants: Values of weights and biases that differ from the model's.
    """
    copy = model.clone()
    if any(spec.dtype.is_float8 for spec in plan.specs()) and copy.opset_imports[""] < _FLOAT8_SINCE_OPSET:
        copy = convert_opset(copy, _FLOAT8_SINCE_OPSET)
    copy.opset_imports.setdefault(CONTRIB, 1)
    copy.graph.opset_imports.setdefault(CONTRIB, 1)
    view = QuantizedView(plan, params)
    simulation = Simulation(copy, view)
    writer = _Writer(simulation)
    for quantizer in view.activations:
        writer.quantize(quantizer)
    for quantizer in view.conversions:
        writer.convert(quantizer)
    for quantizer in view.constants:
        writer.round_constant(quantizer)
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

    def quantize(self, quantizer: Quantizer) -> None:
        """Quantize a tensor after its producer and dequantize it in front of each reader."""
        value = self._values[quantizer.tensor]
        readers = [(use.node, use.idx) for use in value.uses() if use.node.graph is self._graph]
        self._readers[quantizer.tensor] = readers
        pair = self._pair(quantizer)
        if pair is None:
            self._simulation.left_float.append(quantizer.name)
            return
        chain = pair.quantize(value)
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], chain)
        else:
            self._graph.insert_after(producer, chain)
        integers = chain[-1].outputs[0]
        self._simulation.integers[quantizer.tensor] = integers.name or ""
        for reader, index in readers:
            self._read_through(reader, index, [pair.dequantize(integers)])

    def convert(self, quantizer: Quantizer) -> None:
        """Quantize a tensor a second time, in front of the readers that need another type."""
        pair = self._pair(quantizer)
        if pair is None:
            self._simulation.left_float.append(quantizer.name)
            return
        for reader, index in self._readers[quantizer.tensor]:
            value = reader.inputs[index]
            if quantizer.reads(reader.name or "") and value is not None:
                chain = pair.quantize(value)
                self._read_through(reader, index, [*chain, pair.dequantize(chain[-1].outputs[0])])

    def round_constant(self, quantizer: Quantizer) -> None:
        """Round an initializer for the nodes that read it as integers."""
        name = quantizer.tensor
        value = self._graph.initializers[name]
        if quantizer.params is None or value.const_value is None:
            return
        rounded = self._constant(f"{name}_rounded", quantizer.round(value.const_value.numpy()))
        for use in tuple(value.uses()):
            # A reader inside a body is quantized only if the plan names it.
            inside = use.node.graph is not self._graph
            if quantizer.reads(use.node.name or "") and not (inside and quantizer.readers is None):
                use.node.replace_input_with(use.idx, rounded)
        self._simulation.rounded[name] = rounded.name or ""

    def _read_through(self, reader: ir.Node, index: int, chain: list[ir.Node]) -> None:
        self._graph.insert_before(reader, chain)
        preludes, name = self._simulation.preludes, reader.name or ""
        preludes[name] = preludes.get(name, 0) + len(chain)
        reader.replace_input_with(index, chain[-1].outputs[0])

    def _pair(self, quantizer: Quantizer) -> "_Pair | None":
        """Return how a tensor is quantized and dequantized, or None where onnxruntime has no pair for its type."""
        name, dtype = quantizer.name, quantizer.dtype
        if dtype in _CASTS:
            there, back = _CASTS[dtype], ir.DataType.FLOAT
            return _Pair(
                lambda value: [self._node("Cast", [value], {"to": there.value}, there)],
                lambda value: self._node("Cast", [value], {"to": back.value}, back),
            )
        params = quantizer.params
        if params is None or dtype.bits > 16 or params.axis is not None:
            return None
        if dtype.is_float8:
            return self._float8_pair(name, params)
        stored = _WIDE.get(dtype, _BYTE[dtype.is_signed])
        scale = self._constant(f"{name}_scale", np.asarray(params.scale))
        zero_point = self._constant(f"{name}_zero_point", params.zero_point.astype(stored.numpy()))

        def quantize(value: ir.Value) -> list[ir.Node]:
            # QuantizeLinear saturates at the ends of the stored type only, so tighter limits need a Clip in front.
            clip = [self._clip(name, value, params)] if dtype.bits < 8 or params.limits is not None else []
            source = clip[0].outputs[0] if clip else value
            return [*clip, self._node("QuantizeLinear", [source, scale, zero_point], {}, stored, CONTRIB)]

        def dequantize(integers: ir.Value) -> ir.Node:
            return self._node("DequantizeLinear", [integers, scale, zero_point], {}, ir.DataType.FLOAT, CONTRIB)

        return _Pair(quantize, dequantize)

    def _float8_pair(self, name: str, params: TensorParams) -> "_Pair":
        """Return a pair in the standard domain, which is the only one with 8-bit floats.

        It quantizes and dequantizes at once, because arrays of 8-bit floats cannot be fed to a session.
        """
        scale = self._constant(f"{name}_scale", np.asarray(params.scale))
        zero_point = self._constant(f"{name}_zero_point", params.zero_point.astype(CONTAINERS[params.dtype]))

        def quantize(value: ir.Value) -> list[ir.Node]:
            quantized = self._node("QuantizeLinear", [value, scale, zero_point], {}, _FLOAT8[params.dtype])
            inputs = [quantized.outputs[0], scale, zero_point]
            return [quantized, self._node("DequantizeLinear", inputs, {}, ir.DataType.FLOAT)]

        return _Pair(quantize, lambda value: self._node("Identity", [value], {}, ir.DataType.FLOAT))

    def _clip(self, name: str, value: ir.Value, params: TensorParams) -> ir.Node:
        levels = np.array([params.lowest, params.highest]) - params.zero_point
        low, high = (levels * params.scale.astype(np.float64)).astype(np.float32)
        bounds = [self._constant(f"{name}_low", np.asarray(low)), self._constant(f"{name}_high", np.asarray(high))]
        return self._node("Clip", [value, *bounds], {}, ir.DataType.FLOAT)

    def _constant(self, preferred: str, values: npt.NDArray[np.generic]) -> ir.Value:
        value = new_initializer(self._names.value(preferred), values)
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
    """Makes the nodes that quantize a value, and the node that dequantizes the output of the last of them."""

    quantize: Callable[[ir.Value], list[ir.Node]]
    dequantize: Callable[[ir.Value], ir.Node]
