"""Lowerings of operators that compute each element independently."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from quantry.errors import ModelError
from quantry.torchfront.lowering.graph_writer import ONNX_TYPES, Call, Dimension, GraphWriter

Lowering = Callable[[GraphWriter, Call], Any]


def unary(operator: str) -> Lowering:
    """Return the lowering of an operator with one input and no option."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        return writer.op(operator, [call.first])

    return lower


def binary(operator: str) -> Lowering:
    """Return the lowering of an operator with two operands, one of which may be a number."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        left, right = (operand(writer, call, name) for name in ("self", "other"))
        alpha = call.get("alpha", 1)
        if alpha != 1:
            right = writer.op("Mul", [right, _number(writer, call, alpha)])
        return writer.op(operator, [left, right])

    return lower


def comparison(operator: str) -> Lowering:
    """Return the lowering of an operator that compares two operands, one of which may be a number."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        kinds = [call.meta(name).dtype for name in ("self", "other") if isinstance(call[name], ir.Value)]
        common = functools.reduce(torch.promote_types, kinds)
        if any(isinstance(call[name], float) for name in ("self", "other")) and not common.is_floating_point:
            common = torch.float32
        return writer.op(operator, [_as_type(writer, call, name, common) for name in ("self", "other")])

    return lower


def _as_type(writer: GraphWriter, call: Call, name: str, dtype: torch.dtype) -> ir.Value:
    value = call[name]
    if not isinstance(value, ir.Value):
        return writer.constant(value, ONNX_TYPES[dtype].numpy())
    return value if call.meta(name).dtype == dtype else writer.cast(value, dtype)


def unequal(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.ne``."""
    return writer.op("Not", [comparison("Equal")(writer, call)])


def logical(operator: str) -> Lowering:
    """Return the lowering of an operator on booleans; torch also has it for the bits of integers."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        if call.result.dtype != torch.bool:
            raise ModelError(
                f"{call.node.target} must have boolean operands, got {call.result.dtype} ({call.node.name}); capture "
                "submodules without it"
            )
        others = [operand(writer, call, "other")] if "other" in call._values else []
        return writer.op(operator, [operand(writer, call, "self"), *others])

    return lower


def divide(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.div``, whose quotient may be rounded."""
    quotient: ir.Value = binary("Div")(writer, call)
    rounding = call.get("rounding_mode")
    if rounding is None:
        return quotient
    if not call.result.dtype.is_floating_point:
        raise ModelError(
            f"a rounded quotient must have float operands, got integers in {call.node.target} ({call.node.name}); "
            "capture submodules without it"
        )
    if rounding == "floor":
        return writer.op("Floor", [quotient])
    return writer.op("Mul", [writer.op("Sign", [quotient]), writer.op("Floor", [writer.op("Abs", [quotient])])])


def softplus(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.softplus``: log(1 + exp(beta x)) / beta."""
    beta = float(call.get("beta", 1.0))
    if beta == 1:
        return writer.op("Softplus", [call.first])
    steep = writer.op("Softplus", [writer.op("Mul", [call.first, writer.constant(beta)])])
    return writer.op("Div", [steep, writer.constant(beta)])


def operand(writer: GraphWriter, call: Call, name: str) -> ir.Value:
    """Return an operand as a tensor of the result's type."""
    value = call[name]
    if isinstance(value, Dimension):
        return writer.cast(value.value, call.result.dtype)
    if not isinstance(value, ir.Value):
        return _number(writer, call, value)
    return value if call.meta(name).dtype == call.result.dtype else writer.cast(value, call.result.dtype)


def reversed_subtraction(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.rsub``."""
    return writer.op("Sub", [operand(writer, call, "other"), operand(writer, call, "self")])


def power(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.pow``."""
    exponent = call["exponent"]
    return writer.op("Pow", [call["self"], exponent if isinstance(exponent, ir.Value) else writer.constant(exponent)])


def reciprocal_root(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.rsqrt``."""
    return writer.op("Reciprocal", [writer.op("Sqrt", [call.first])])


def silu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.silu``: x * Sigmoid(x); ONNX has no Silu before opset 24."""
    return writer.op("Mul", [call.first, writer.op("Sigmoid", [call.first])])


def mish(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.mish``: x * tanh(softplus(x))."""
    return writer.op("Mul", [call.first, writer.op("Tanh", [writer.op("Softplus", [call.first])])])


def hard_sigmoid(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.hardsigmoid``."""
    return writer.op("HardSigmoid", [call.first], {"alpha": 1 / 6, "beta": 0.5})


def hard_swish(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.hardswish``: x * HardSigmoid(x)."""
    return writer.op("Mul", [call.first, hard_sigmoid(writer, call)])


def gelu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.gelu``, exact or with tanh."""
    x = call.first
    if call.get("approximate", "none") == "tanh":
        cube = writer.op("Mul", [writer.op("Mul", [x, x]), x])
        inner = writer.op("Add", [x, writer.op("Mul", [cube, writer.constant(0.044715)])])
        bend = writer.op("Tanh", [writer.op("Mul", [inner, writer.constant(np.sqrt(2 / np.pi))])])
    else:
        bend = writer.op("Erf", [writer.op("Mul", [x, writer.constant(np.sqrt(0.5))])])
    share = writer.op("Mul", [writer.op("Add", [bend, writer.constant(1.0)]), writer.constant(0.5)])
    return writer.op("Mul", [x, share])


def leaky_relu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.leaky_relu``."""
    return writer.op("LeakyRelu", [call.first], {"alpha": float(call.get("negative_slope", 0.01))})


def elu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.elu`` with scales of 1."""
    return writer.op("Elu", [call.first], {"alpha": float(call.get("alpha", 1.0))})


def selu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.selu``, an elu with the two constants of https://arxiv.org/abs/1706.02515."""
    bent = writer.op("Elu", [call.first], {"alpha": 1.6732632423543772})
    return writer.op("Mul", [bent, writer.constant(1.0507009873554805)])


def celu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.celu``: alpha elu(x / alpha)."""
    alpha = writer.constant(float(call.get("alpha", 1.0)))
    return writer.op("Mul", [writer.op("Elu", [writer.op("Div", [call.first, alpha])]), alpha])


def log_sigmoid(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.log_sigmoid``: -softplus(-x)."""
    return writer.op("Neg", [writer.op("Softplus", [writer.op("Neg", [call.first])])])


def gated(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.glu``: one half of an axis times the sigmoid of the other half."""
    axis = int(call.get("dim", -1)) % call.first_meta.dim()
    half = int(call.first_meta.shape[axis]) // 2
    values, gates = writer.multi("Split", [call.first, writer.ints([half, half])], 2, {"axis": axis})
    return writer.op("Mul", [values, writer.op("Sigmoid", [gates])])


def prelu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.prelu``: one slope per channel."""
    slope, rank = call["weight"], call.rank("self")
    if rank > 2:
        slope = writer.op("Reshape", [slope, writer.ints([-1, *[1] * (rank - 2)])])
    return writer.op("PRelu", [call["self"], slope])


def clamp(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.clamp``, ``clamp_min``, ``clamp_max``, ``hardtanh`` and ``relu6``."""
    low, high = call.get("min", call.get("min_val")), call.get("max", call.get("max_val"))
    if any(isinstance(bound, ir.Value) for bound in (low, high)):
        return _between(writer, call.first, low, high)
    bounds = [None if bound is None else writer.constant(float(bound)) for bound in (low, high)]
    return writer.op("Clip", [call.first, *bounds])


def _between(writer: GraphWriter, x: ir.Value, low: Any, high: Any) -> ir.Value:
    """Clip to bounds that are tensors, which ONNX's Clip does not accept."""
    for operator, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            x = writer.op(operator, [x, bound if isinstance(bound, ir.Value) else writer.constant(float(bound))])
    return x


def relu6(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.relu6``."""
    return writer.op("Clip", [call.first, writer.constant(0.0), writer.constant(6.0)])


def choose(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.where`` and ``masked_fill``."""
    if "condition" in call._values:
        return writer.op("Where", [call["condition"], operand(writer, call, "self"), operand(writer, call, "other")])
    return writer.op("Where", [call["mask"], operand(writer, call, "value"), call["self"]])


def _number(writer: GraphWriter, call: Call, value: float) -> ir.Value:
    return writer.constant(value, ONNX_TYPES[call.result.dtype].numpy())


LOWERINGS: dict[str, Lowering] = {
    "relu": unary("Relu"),
    "sigmoid": unary("Sigmoid"),
    "tanh": unary("Tanh"),
    "exp": unary("Exp"),
    "log": unary("Log"),
    "sqrt": unary("Sqrt"),
    "abs": unary("Abs"),
    "neg": unary("Neg"),
    "erf": unary("Erf"),
    "floor": unary("Floor"),
    "reciprocal": unary("Reciprocal"),
    "softplus": softplus,
    "sin": unary("Sin"),
    "cos": unary("Cos"),
    "logical_not": logical("Not"),
    "bitwise_not": logical("Not"),
    "__and__": logical("And"),
    "__or__": logical("Or"),
    "logical_and": logical("And"),
    "bitwise_and": logical("And"),
    "logical_or": logical("Or"),
    "bitwise_or": logical("Or"),
    "gt": comparison("Greater"),
    "ge": comparison("GreaterOrEqual"),
    "lt": comparison("Less"),
    "le": comparison("LessOrEqual"),
    "eq": comparison("Equal"),
    "ne": unequal,
    "add": binary("Add"),
    "sub": binary("Sub"),
    "mul": binary("Mul"),
    "div": divide,
    "maximum": binary("Max"),
    "minimum": binary("Min"),
    "rsub": reversed_subtraction,
    "pow": power,
    "rsqrt": reciprocal_root,
    "silu": silu,
    "mish": mish,
    "hardsigmoid": hard_sigmoid,
    "hardswish": hard_swish,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "selu": selu,
    "celu": celu,
    "log_sigmoid": log_sigmoid,
    "glu": gated,
    "prelu": prelu,
    "clamp": clamp,
    "clamp_min": clamp,
    "clamp_max": clamp,
    "hardtanh": clamp,
    "relu6": relu6,
    "where": choose,
    "masked_fill": choose,
}
