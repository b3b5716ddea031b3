"""Operators between tensors: each operand is brought to the output's scale, in float32 inside the kernel.

The kernels add and multiply what DequantizeLinear would give, in another order; a result within a float32 error of a
tie may differ by one step.
"""

import onnx_ir as ir

from quantry.emit.integer.unit import Unit

_CONTRIB = "com.microsoft"


def add(unit: Unit) -> ir.Node | None:
    """Return QLinearAdd."""
    return _binary(unit, "QLinearAdd")


def multiply(unit: Unit) -> ir.Node | None:
    """Return QLinearMul."""
    return _binary(unit, "QLinearMul")


def concat(unit: Unit) -> ir.Node | None:
    """Return QLinearConcat, which brings every input to the output's scale."""
    sides = unit.sides(len(unit.node.inputs))
    if sides is None:
        return None
    inputs = (*unit.output.pair, *(value for side in sides for value in side.triple))
    return unit.make((_CONTRIB, "QLinearConcat"), inputs, {"axis": unit.node.attributes.get_int("axis", 0)})


def _binary(unit: Unit, operator: str) -> ir.Node | None:
    sides = unit.sides(2)
    if sides is None:
        return None
    return unit.make((_CONTRIB, operator), (*sides[0].triple, *sides[1].triple, *unit.output.pair))
