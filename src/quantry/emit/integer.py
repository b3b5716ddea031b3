"""Integer kernels: the operator that computes on integers what a float operator between DQ and Q computes.

To add one: write a function from `QuantizedOperator` to the new node, or to None if no kernel exists, and add it to
`KERNELS`.

=====================  ================================================================================================
Relu, Clip             Clip on the integers. Rounding never changes the order of two numbers, so
                       ``Q(clip(y, a, b)) = clip(Q(y), Q(a), Q(b))`` exactly, for every scale and zero point
Sigmoid, LeakyRelu,    look-up tables over the 256 integers, so the results are those of the float operator
Softmax
Add, Mul, Concat,      each operand is rescaled to the output's scale, in float32 inside the kernel, in another order
Where                  than DequantizeLinear; a result within a float32 error of a tie may differ by one step
data movement          the same operator on integers
averages               summed as integers, then rescaled to the output's scale
Conv, MatMul, Gemm     integer multiply-add, then one multiplication back to eight bits
=====================  ================================================================================================

The product kernels multiply the accumulator by ``s_x * s_w / s_y`` in float32 and round half to even; the float
operator multiplies by the scales first. Both round the same number except within a float32 error of a tie, so a
result may differ by one step. With power-of-two scales both are exact, and the results are equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.emit.fusion_barriers import SMALLEST_STEP
from quantry.emit.graph_editor import GraphEditor
from quantry.facts.operators import MATRIX_PRODUCTS, operators_where
from quantry.graph.qdq import QuantizedTensor
from quantry.numerics.rounding import round_and_clip

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class QuantizedOperator:
    """One float node whose float inputs come from DequantizeLinear and whose outputs go only to QuantizeLinear.

    Attributes:
        node: The float node.
        inputs: The quantized form of each input, or None if it is not quantized or absent.
        outputs: The quantized form of each output.
        editor: Creates nodes and constants.
    """

    node: ir.Node
    inputs: tuple[QuantizedTensor | None, ...]
    outputs: tuple[QuantizedTensor, ...]
    editor: GraphEditor

    @property
    def output(self) -> QuantizedTensor:
        """The only output."""
        return self.outputs[0]

    def sides(self, count: int) -> tuple[QuantizedTensor, ...] | None:
        """Return the first inputs in quantized form if all of them have the output's type, of 8 bits."""
        quantized_sides = tuple(side for side in self.inputs[:count] if side is not None and side.axis is None)
        if len(quantized_sides) < count or {side.dtype for side in quantized_sides} != {self.output.dtype}:
            return None
        return quantized_sides if self.output.dtype in BYTES else None

    def make(
        self,
        operator: tuple[str, str],
        inputs: tuple[ir.Value | None, ...],
        attributes: dict[str, int | float | str | list[int]] | None = None,
    ) -> ir.Node:
        """Return the node that replaces the float node, with its name.

        Args:
            operator: Domain and operator type.
            inputs: Its inputs.
            attributes: Its attributes.
        """
        return self.editor.node(operator, inputs, f"{self.node.name}_quant", attributes)


Kernel = Callable[[QuantizedOperator], ir.Node | None]
"""Returns the node that computes an operator on integers, or None if there is no such kernel."""


def array(value: ir.Value) -> np.ndarray:
    """Return the data of a constant."""
    assert value.const_value is not None
    return value.const_value.numpy()


def scales_of(tensor: QuantizedTensor) -> NDArray[np.float32]:
    """Return the scales of a tensor that has constant ones."""
    assert tensor.scales is not None
    return tensor.scales


Limits = tuple[int | None, int | None]


def bounds(unit: QuantizedOperator) -> ir.Node | None:
    """Return Clip on the integers, for a Relu or Clip whose input and output have the same parameters."""
    source = unit.inputs[0]
    if source is None or not source.same_grid(unit.output) or source.dtype not in BYTES:
        return None
    return clip_node(unit, source.integers, limits_of(unit.node, unit.output))


def limits_of(node: ir.Node, side: QuantizedTensor) -> Limits:
    """Return the integers that a Relu or Clip limits its output to; None if the type ends there anyway.

    Args:
        node: The Relu or Clip.
        side: Its output in quantized form, with one scale.
    """
    low, high = (0.0, None) if node.op_type == "Relu" else (_bound(node, 1), _bound(node, 2))
    assert side.limits is not None
    lowest, highest = _integer(low, side), _integer(high, side)
    return (
        None if lowest is None or lowest <= side.limits[0] else lowest,
        None if highest is None or highest >= side.limits[1] else highest,
    )


def clip_node(unit: QuantizedOperator, integers: ir.Value, limits: Limits) -> ir.Node:
    """Return a Clip of integers.

    Args:
        unit: The operator it belongs to.
        integers: Its input.
        limits: Its bounds.
    """
    dtype = unit.output.dtype
    assert dtype is not None
    bounds = zip(("min", "max"), limits, strict=True)
    constants = [
        None
        if limit is None
        else unit.editor.constant(np.array(limit, dtype.numpy()), f"{unit.node.name}_quant_{name}")
        for name, limit in bounds
    ]
    return unit.make(("", "Clip"), (integers, *constants))


def _bound(node: ir.Node, index: int) -> float | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else float(array(value))


def _integer(bound: float | None, side: QuantizedTensor) -> int | None:
    if bound is None:
        return None
    assert side.limits is not None
    low, high = (end - side.offset for end in side.limits)
    return int(round_and_clip(np.float32(bound) / scales_of(side), low, high).item()) + side.offset


_CONTRIB = "com.microsoft"


def sigmoid(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearSigmoid."""
    return _lookup(unit, "QLinearSigmoid", {})


def leaky_relu(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearLeakyRelu."""
    return _lookup(unit, "QLinearLeakyRelu", {"alpha": unit.node.attributes.get_float("alpha", 0.01)})


def softmax(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearSoftmax, whose exponentials come from a table; the quotient is rounded separately."""
    if float(scales_of(unit.output).max()) < SMALLEST_STEP:
        return None  # it would overflow
    return _lookup(unit, "QLinearSoftmax", {"axis": unit.node.attributes.get_int("axis", -1), "opset": 13})


def _lookup(
    unit: QuantizedOperator, operator: str, attributes: dict[str, int | float | str | list[int]]
) -> ir.Node | None:
    sides = unit.sides(1)
    if sides is None:
        return None
    return unit.make((_CONTRIB, operator), (*sides[0].triple, *unit.output.parameters), attributes)


def add(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearAdd."""
    return _binary(unit, "QLinearAdd")


def multiply(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearMul."""
    return _binary(unit, "QLinearMul")


def concat(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearConcat, which rescales every input to the output's scale."""
    sides = unit.sides(len(unit.node.inputs))
    if sides is None:
        return None
    inputs = (*unit.output.parameters, *(value for side in sides for value in side.triple))
    return unit.make((_CONTRIB, "QLinearConcat"), inputs, {"axis": unit.node.attributes.get_int("axis", 0)})


def where(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearWhere, which rescales both branches to the output's scale."""
    branches = [side for side in unit.inputs[1:3] if side is not None and side.axis is None]
    if len(branches) < 2 or {side.dtype for side in (*branches, unit.output)} - {unit.output.dtype}:
        return None
    if unit.output.dtype not in BYTES:
        return None
    condition = unit.node.inputs[0]
    inputs = (condition, *branches[0].triple, *branches[1].triple, *unit.output.parameters)
    return unit.make((_CONTRIB, "QLinearWhere"), inputs)


def _binary(unit: QuantizedOperator, operator: str) -> ir.Node | None:
    sides = unit.sides(2)
    if sides is None:
        return None
    return unit.make((_CONTRIB, operator), (*sides[0].triple, *sides[1].triple, *unit.output.parameters))


def move(unit: QuantizedOperator) -> ir.Node | None:
    """Return the same operator on integers, if all outputs have the parameters of the input."""
    source = unit.inputs[0]
    if source is None or source.dtype not in BYTES or not all(source.same_grid(output) for output in unit.outputs):
        return None
    if unit.node.op_type == "Resize" and unit.node.attributes.get_string("mode", "nearest") != "nearest":
        return None
    return _copy(unit, (source.integers, *unit.node.inputs[1:]))


def pad(unit: QuantizedOperator) -> ir.Node | None:
    """Return Pad on integers, which fills with the integer of the constant, the zero point for zero."""
    source = unit.inputs[0]
    if source is None or source.dtype not in BYTES or not source.same_grid(unit.output):
        return None
    settings = list(unit.node.inputs[1:])
    if unit.node.attributes.get_string("mode", "constant") == "constant":
        fill = settings[1] if len(settings) > 1 else None
        if fill is not None and fill.const_value is None:
            return None
        number = 0.0 if fill is None else float(array(fill).reshape(-1)[0])
        _, constant = source.parameters
        if number:
            assert source.dtype is not None
            level = np.array(_integer(number, source), source.dtype.numpy())
            constant = unit.editor.constant(level, f"{unit.node.name}_quant_fill")
        settings = [settings[0], constant, *settings[2:]]
    return _copy(unit, (source.integers, *settings))


def _copy(unit: QuantizedOperator, inputs: tuple[ir.Value | None, ...]) -> ir.Node:
    node = ir.node(
        unit.node.op_type,
        inputs,
        attributes={name: attribute.value for name, attribute in unit.node.attributes.items()} or None,
        num_outputs=len(unit.node.outputs),
        name=unit.editor.fresh(f"{unit.node.name}_quant"),
    )
    for index, output in enumerate(node.outputs):
        output.name = unit.editor.fresh(f"{unit.node.name}_quant_Output_{index}")
    return node


_KEPT = ("auto_pad", "count_include_pad", "kernel_shape", "pads", "strides")


def average_pool(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearAveragePool; None for windows that it does not support."""
    attributes = unit.node.attributes
    sides = unit.sides(1)
    dilated = any(step != 1 for step in attributes.get_ints("dilations", ()))
    rounds_up = attributes.get_int("ceil_mode", 0) == 1
    if sides is None or dilated or rounds_up:
        return None
    copied = {name: attributes[name].value for name in _KEPT if name in attributes}
    return unit.make((_CONTRIB, "QLinearAveragePool"), (*sides[0].triple, *unit.output.parameters), copied)


def global_average_pool(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearGlobalAveragePool."""
    sides = unit.sides(1)
    if sides is None:
        return None
    inputs = (*sides[0].triple, *unit.output.parameters)
    return unit.make((_CONTRIB, "QLinearGlobalAveragePool"), inputs, {"channels_last": 0})


_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Product:
    """What the kernel of a product reads.

    Attributes:
        data: The first factor.
        weight: The second factor.
        bias: The bias as int32 with the accumulator's scale, if any.
        output: Scale and zero point of the result.
    """

    data: QuantizedTensor
    weight: QuantizedTensor
    bias: ir.Value | None
    output: tuple[ir.Value, ir.Value]


def product(unit: QuantizedOperator) -> ir.Node | None:
    """Return QLinearConv, QLinearMatMul or QGemm."""
    sides = operands(unit)
    if sides is None:
        return None
    bias = _bias(unit, sides)
    if bias is None and has_bias(unit):
        return None
    return product_node(unit, Product(*sides, bias, unit.output.parameters))


def product_node(unit: QuantizedOperator, product: Product) -> ir.Node:
    """Return the integer kernel of a Conv, MatMul or Gemm."""
    node, factors = unit.node, (*product.data.triple, *product.weight.triple)
    if node.op_type == "Conv":
        inputs: tuple[ir.Value | None, ...] = (*factors, *product.output)
        last = () if product.bias is None else (product.bias,)
        return unit.make(("", "QLinearConv"), (*inputs, *last), _attributes(node))
    if node.op_type == "MatMul":
        return unit.make(("", "QLinearMatMul"), (*factors, *product.output))
    attributes: dict[str, int | float | str | list[int]] = {
        name: node.attributes.get_int(name, 0) for name in ("transA", "transB")
    }
    return unit.make((_CONTRIB, "QGemm"), (*factors, product.bias, *product.output), attributes)


def operands(unit: QuantizedOperator) -> tuple[QuantizedTensor, QuantizedTensor] | None:
    """Return both factors of a product if a kernel exists for them: u8 x u8, u8 x s8 and s8 x s8."""
    node, (data, weight) = unit.node, unit.inputs[:2]
    if node.op_type == "Gemm" and any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    channel_axis = _channel_axis(node, weight)
    if data is None or weight is None or data.axis is not None or data.dtype != unit.output.dtype:
        return None
    if data.dtype not in (ir.DataType.INT8, ir.DataType.UINT8) or weight.dtype not in (ir.DataType.INT8, data.dtype):
        return None
    if weight.axis is not None and (weight.axis != channel_axis or np.unique(weight.zero_points).size != 1):
        return None
    return data, weight


def _channel_axis(node: ir.Node, weight: QuantizedTensor | None) -> int | None:
    """Return the axis of the weight along which kernels accept several scales."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    rank = len(weight.integers.shape) if weight is not None and weight.integers.shape is not None else 0
    return 1 if rank == 2 else None


def has_bias(unit: QuantizedOperator) -> bool:
    """Whether a product has a bias, quantized or not."""
    return len(unit.node.inputs) > 2 and unit.node.inputs[2] is not None


def _bias(unit: QuantizedOperator, sides: tuple[QuantizedTensor, QuantizedTensor]) -> ir.Value | None:
    """Return the bias as int32 with the accumulator's scale, or None if that is not exact."""
    bias = unit.inputs[2] if len(unit.inputs) > 2 else None
    if bias is None or bias.integers.const_value is None:
        return None
    if bias.integers.shape is None or len(bias.integers.shape) != 1:
        return None
    grid = scales_of(sides[0]).astype(np.float64) * scales_of(sides[1])
    integers = array(bias.integers).astype(np.int64) - bias.zero_points
    if bias.dtype == ir.DataType.INT32 and np.array_equal(scales_of(bias), grid.astype(np.float32)):
        return bias.integers
    exact = integers * scales_of(bias).astype(np.float64) / grid
    if not np.array_equal(exact, np.rint(exact)) or exact.min() < _INT32.min or exact.max() > _INT32.max:
        return None
    return unit.editor.constant(exact.astype(np.int32), f"{bias.integers.name}_int32")


def _attributes(node: ir.Node) -> dict[str, Any]:
    return dict(node.attributes)  # attributes as they are: inferring their types from values is slow


KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("Conv", *MATRIX_PRODUCTS), product),
    "Add": add,
    "Mul": multiply,
    "Concat": concat,
    "Where": where,
    "Sigmoid": sigmoid,
    "LeakyRelu": leaky_relu,
    "Softmax": softmax,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "Pad": pad,
    "Relu": bounds,
    "Clip": bounds,
    **dict.fromkeys(operators_where(lambda row: row.integer_kernel), move),
}

__all__ = ["KERNELS", "Kernel", "QuantizedOperator"]
