"""Functions that chains of elementwise nodes compute."""

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from quantry.facts.operators import facts
from quantry.graph.edit import constant_of, float_of, string_of
from quantry.numerics.scalar_function import IDENTITY, ScalarFunction, constant

_EXPONENTS = (1.0, 2.0, 3.0)


def elementwise_function(node: ir.Node, operands: Sequence[ScalarFunction | None]) -> ScalarFunction | None:
    """Return the function of one element that a node computes, or None if it is not known to be one.

    Args:
        node: The node.
        operands: Its inputs in order, including constants; None for an absent input.
    """
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return None
    if node.op_type == "Clip":
        return _clip(operands)
    present = [operand for operand in operands if operand is not None]
    row = facts(node)
    if row.scalar is None or len(present) != row.operands or not _defined(node, present):
        return None
    name = "GeluTanh" if node.op_type == "Gelu" and string_of(node, "approximate", "none") == "tanh" else node.op_type
    parameters = tuple(float_of(node, *attribute) for attribute in row.scalar.parameters)
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
    """Return whether the function is finite for all finite arguments, except for overflow."""
    if not all(math.isfinite(operand.parameters[0]) for operand in operands if operand.is_constant):
        return False
    if node.op_type == "Div":
        return operands[1].is_constant and operands[1].parameters[0] != 0
    if node.op_type == "Pow":
        return operands[1].is_constant and operands[1].parameters[0] in _EXPONENTS
    return node.op_type != "PRelu" or operands[1].is_constant


def functions_of(start: ir.Value, longest: int) -> dict[ir.Value, ScalarFunction]:
    """Return every tensor whose elements are functions of single elements of a tensor, including that tensor.

    Args:
        start: The tensor.
        longest: Most operators of a function.
    """
    functions: dict[ir.Value, ScalarFunction] = {start: IDENTITY}
    pending = [start]
    while pending:
        value = pending.pop(0)
        for node in {use.node: None for use in value.uses()}:
            function = None if node.outputs[0] in functions else _function_of(node, functions)
            if function is not None and function.size <= longest and node.graph is start.graph:
                functions[node.outputs[0]] = function
                pending.append(node.outputs[0])
    return functions


def _function_of(node: ir.Node, functions: Mapping[ir.Value, ScalarFunction]) -> ScalarFunction | None:
    """Return what a node computes if every operand is a known function or one number."""
    operands = [None if value is None else _operand(value, functions) for value in node.inputs]
    complete = all(value is None or operand is not None for value, operand in zip(node.inputs, operands, strict=True))
    return elementwise_function(node, operands) if complete else None


def _operand(value: ir.Value, functions: Mapping[ir.Value, ScalarFunction]) -> ScalarFunction | None:
    if value in functions:
        return functions[value]
    array = constant_of(value)
    is_number = array is not None and array.size == 1 and value.dtype is not None and value.dtype.is_floating_point()
    return constant(float(array.reshape(()))) if array is not None and is_number else None
