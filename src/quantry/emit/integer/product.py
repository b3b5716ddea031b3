"""Convolutions and matrix products: integer multiply-add, then one multiplication back to eight bits.

The kernels multiply the accumulator by ``s_x * s_w / s_y`` in float32 and round half to even; the float operator
multiplies the scales in first. Both round the same number except where it lies within a float32 error of a tie, so a
result may differ by one step. With power-of-two scales nothing is lost on either way and the results are equal.
"""

import numpy as np
import onnx_ir as ir

from quantry.emit.integer.unit import Side, Unit, array

_CONTRIB = "com.microsoft"
_INT32 = np.iinfo(np.int32)


def conv(unit: Unit) -> ir.Node | None:
    """Return QLinearConv."""
    sides = _operands(unit, channel_axis=0)
    if sides is None:
        return None
    bias = _bias(unit, sides)
    if bias is None and _has_bias(unit):
        return None
    data, weight = sides
    inputs: tuple[ir.Value | None, ...] = (*data.triple, *weight.triple, *unit.output.pair)
    return unit.make(("", "QLinearConv"), (*inputs, bias) if bias is not None else inputs, _attributes(unit.node))


def matmul(unit: Unit) -> ir.Node | None:
    """Return QLinearMatMul."""
    weight = unit.inputs[1]
    rank = len(weight.integers.shape) if weight is not None and weight.integers.shape is not None else 0
    sides = _operands(unit, channel_axis=1 if rank == 2 else None)
    if sides is None:
        return None
    return unit.make(("", "QLinearMatMul"), (*sides[0].triple, *sides[1].triple, *unit.output.pair))


def gemm(unit: Unit) -> ir.Node | None:
    """Return QGemm, which adds a bias of one value for each column."""
    node = unit.node
    if node.attributes.get_float("alpha", 1.0) != 1.0 or node.attributes.get_float("beta", 1.0) != 1.0:
        return None
    transposed = node.attributes.get_int("transB", 0)
    sides = _operands(unit, channel_axis=0 if transposed else 1)
    if sides is None:
        return None
    bias = _bias(unit, sides)
    if bias is None and _has_bias(unit):
        return None
    attributes: dict[str, int | float | str | list[int]] = {
        "transA": node.attributes.get_int("transA", 0),
        "transB": transposed,
    }
    return unit.make((_CONTRIB, "QGemm"), (*sides[0].triple, *sides[1].triple, bias, *unit.output.pair), attributes)


def _operands(unit: Unit, channel_axis: int | None) -> tuple[Side, Side] | None:
    """Return both factors where kernels exist for their types: u8 x u8, u8 x s8 and s8 x s8."""
    data, weight = unit.inputs[0], unit.inputs[1]
    if data is None or weight is None or data.axis is not None or data.dtype != unit.output.dtype:
        return None
    if data.dtype not in (ir.DataType.INT8, ir.DataType.UINT8) or weight.dtype not in (ir.DataType.INT8, data.dtype):
        return None
    if weight.axis is not None and (weight.axis != channel_axis or np.unique(array(weight.zero_point)).size != 1):
        return None
    return data, weight


def _has_bias(unit: Unit) -> bool:
    return len(unit.node.inputs) > 2 and unit.node.inputs[2] is not None


def _bias(unit: Unit, sides: tuple[Side, Side]) -> ir.Value | None:
    """Return the bias as int32 on the accumulator's grid, or None where it does not lie on it exactly."""
    bias = unit.inputs[2] if len(unit.inputs) > 2 else None
    if bias is None or bias.integers.const_value is None:
        return None
    if bias.integers.shape is None or len(bias.integers.shape) != 1:
        return None
    grid = array(sides[0].scale).astype(np.float64) * array(sides[1].scale).astype(np.float64)
    integers = array(bias.integers).astype(np.int64) - array(bias.zero_point).astype(np.int64)
    if bias.dtype == ir.DataType.INT32 and np.array_equal(array(bias.scale), grid.astype(np.float32)):
        return bias.integers
    exact = integers * array(bias.scale).astype(np.float64) / grid
    if not np.array_equal(exact, np.rint(exact)) or exact.min() < _INT32.min or exact.max() > _INT32.max:
        return None
    return unit.editor.constant(exact.astype(np.int32), f"{bias.integers.name}_int32")


def _attributes(node: ir.Node) -> dict[str, int | float | str | list[int]]:
    return {name: attribute.value for name, attribute in node.attributes.items()}
