"""Functions of one tensor: look-up tables over the 256 integers, so the results are those of the float operator."""

import onnx_ir as ir

from quantry.emit.integer.unit import Unit

_CONTRIB = "com.microsoft"


def sigmoid(unit: Unit) -> ir.Node | None:
    """Return QLinearSigmoid."""
    return _lookup(unit, "QLinearSigmoid", {})


def leaky_relu(unit: Unit) -> ir.Node | None:
    """Return QLinearLeakyRelu."""
    return _lookup(unit, "QLinearLeakyRelu", {"alpha": unit.node.attributes.get_float("alpha", 0.01)})


def softmax(unit: Unit) -> ir.Node | None:
    """Return QLinearSoftmax, whose exponentials come from a table and whose quotient is rounded by itself."""
    return _lookup(unit, "QLinearSoftmax", {"axis": unit.node.attributes.get_int("axis", -1), "opset": 13})


def _lookup(unit: Unit, operator: str, attributes: dict[str, int | float | str | list[int]]) -> ir.Node | None:
    sides = unit.sides(1)
    if sides is None:
        return None
    return unit.make((_CONTRIB, operator), (*sides[0].triple, *unit.output.pair), attributes)
