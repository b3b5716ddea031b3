"""Reads what a node computes from one element."""

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from quantry.observe.scalar_function import ScalarFunction
from quantry.observe.scalar_operator import OPERATORS

ATTRIBUTES: Mapping[str, tuple[tuple[str, float], ...]] = {
    "Celu": (("alpha", 1.0),),
    "Elu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "LeakyRelu": (("alpha", 0.01),),
    "Selu": (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
}
"""Attributes that are parameters of the operator, in order, with the defaults of the ONNX standard."""

OPERAND_COUNT: Mapping[str, int] = dict.fromkeys(("Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub"), 2)
"""Operators that take more than one operand."""

EXPONENTS = (1.0, 2.0, 3.0)


def elementwise_function(node: ir.Node, operands: Sequence[ScalarFunction | None]) -> ScalarFunction | None:
    """Return what a node computes from one element, or None if it is not known to be such a function.

    Args:
        node: The node.
        operands: Its inputs in order, constants among them; None where an input is absent.
    """
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return None
    if node.op_type == "Clip":
        return _clip(operands)
    present = [operand for operand in operands if operand is not None]
    if (
        node.op_type not in OPERATORS
        or len(present) != OPERAND_COUNT.get(node.op_type, 1)
        or not _defined(node, present)
    ):
        return None
    name = "GeluTanh" if node.op_type == "Gelu" and _text(node, "approximate") == "tanh" else node.op_type
    parameters = tuple(_number(node, *attribute) for attribute in ATTRIBUTES.get(name, ()))
    return ScalarFunction(name, parameters, tuple(present))


def _clip(operands: Sequence[ScalarFunction | None]) -> ScalarFunction | None:
    function, low, high = (*operands, None, None)[:3]
    for name, bound in (("Max", low), ("Min", high)):
        if bound is None or function is None:
            continue
        if not bound.is_constant:
            return None
        if math.isfinite(bound.parameters[0]):
            function = ScalarFunction(name, (), (function, bound))
    return function


def _defined(node: ir.Node, operands: Sequence[ScalarFunction]) -> bool:
    """Return whether the function is finite for all finite arguments, short of overflow."""
    if not all(math.isfinite(operand.parameters[0]) for operand in operands if operand.is_constant):
        return False
    if node.op_type == "Div":
        return operands[1].is_constant and operands[1].parameters[0] != 0
    if node.op_type == "Pow":
        return operands[1].is_constant and operands[1].parameters[0] in EXPONENTS
    return node.op_type != "PRelu" or operands[1].is_constant


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes[name].value) if name in node.attributes else default


def _text(node: ir.Node, name: str) -> str:
    return str(node.attributes[name].value) if name in node.attributes else ""
