"""Operators that compute each element by itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from quantry.torchfront.lowering.call import Call
from quantry.torchfront.lowering.graph_writer import ONNX_TYPES, Dimension, GraphWriter

Lowering = Callable[[GraphWriter, Call], Any]


def unary(operator: str) -> Lowering:
    """Return the lowering of an operator with one input and no option."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        return writer.op(operator, [call.first])

    return lower


def binary(operator: str) -> Lowering:
    """Return the lowering of an operator with two operands, of which one may be a number."""

    def lower(writer: GraphWriter, call: Call) -> ir.Value:
        left, right = (operand(writer, call, name) for name in ("self", "other"))
        alpha = call.get("alpha", 1)
        if alpha != 1:
            right = writer.op("Mul", [right, _number(writer, call, alpha)])
        return writer.op(operator, [left, right])

    return lower


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
    """``aten.silu``: x * Sigmoid(x), as ONNX has it."""
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
    """``aten.elu`` with its usual scales."""
    return writer.op("Elu", [call.first], {"alpha": float(call.get("alpha", 1.0))})


def prelu(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.prelu``: the slope lies along the channel axis."""
    slope, rank = call["weight"], call.rank("self")
    if rank > 2:
        slope = writer.op("Reshape", [slope, writer.ints([-1, *[1] * (rank - 2)])])
    return writer.op("PRelu", [call["self"], slope])


def clamp(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.clamp``, ``clamp_min``, ``clamp_max``, ``hardtanh`` and ``relu6``."""
    low, high = call.get("min", call.get("min_val")), call.get("max", call.get("max_val"))
    bounds = [None if bound is None else writer.constant(float(bound)) for bound in (low, high)]
    return writer.op("Clip", [call.first, *bounds])


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
    "softplus": unary("Softplus"),
    "add": binary("Add"),
    "sub": binary("Sub"),
    "mul": binary("Mul"),
    "div": binary("Div"),
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
    "prelu": prelu,
    "clamp": clamp,
    "clamp_min": clamp,
    "clamp_max": clamp,
    "hardtanh": clamp,
    "relu6": relu6,
    "where": choose,
    "masked_fill": choose,
}
