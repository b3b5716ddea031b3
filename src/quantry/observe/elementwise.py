"""Which operators are functions of one number, and which.

To add one: a line in `UNARY`, or in `BINARY` for an operator of two operands. Where an operator is missing here nothing
is lost but time: its output is then observed instead of derived.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from quantry.observe.scalar_function import Numbers, ScalarFunction, binary, unary

Attributes = Mapping[str, Any]
Operand = ScalarFunction | float
"""What feeds an operator: a function of the element that is followed, or a constant."""


def elementwise_function(node: ir.Node, operands: Sequence[Operand | None]) -> ScalarFunction | None:
    """Return what a node computes from one element, or None if it is not known to be such a function.

    Args:
        node: The node.
        operands: Its inputs in order; None where an input is absent.
    """
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if node.op_type in UNARY:
        return _apply_unary(UNARY[node.op_type], operands, attributes)
    if node.op_type == "Clip":
        return _apply_clip(operands)
    if node.op_type in BINARY and len(operands) == 2:
        return _apply_binary(node.op_type, operands[0], operands[1])
    return None


def _apply_unary(
    make: Callable[[Attributes], ScalarFunction], operands: Sequence[Operand | None], attributes: Attributes
) -> ScalarFunction | None:
    if len(operands) != 1 or not isinstance(operands[0], ScalarFunction):
        return None
    return make(attributes).after(operands[0])


def _apply_clip(operands: Sequence[Operand | None]) -> ScalarFunction | None:
    argument, low, high = (*operands, None, None)[:3]
    if not isinstance(argument, ScalarFunction) or isinstance(low, ScalarFunction) or isinstance(high, ScalarFunction):
        return None
    low, high = -np.inf if low is None else low, np.inf if high is None else high
    return unary(f"Clip[{low!r},{high!r}]", lambda x: np.minimum(np.maximum(x, low), high)).after(argument)


def _apply_binary(name: str, left: Operand | None, right: Operand | None) -> ScalarFunction | None:
    combine = BINARY[name]
    if isinstance(left, ScalarFunction) and isinstance(right, ScalarFunction):
        return None if name == "Div" else binary(name, combine, left, right)
    if isinstance(left, ScalarFunction) and isinstance(right, float):
        if name == "Pow":
            return _power(right).after(left) if right in (1.0, 2.0, 3.0) else None
        if name == "Div" and right == 0.0:
            return None
        constant = np.array(right)
        monotone = name != "PRelu" or right >= 0
        return unary(f"{name}[,{right!r}]", lambda x: combine(x, constant), monotone=monotone).after(left)
    if isinstance(left, float) and isinstance(right, ScalarFunction) and name not in ("Div", "Pow", "PRelu"):
        constant = np.array(left)
        return unary(f"{name}[{left!r},]", lambda x: combine(constant, x)).after(right)
    return None


def _sigmoid(x: Numbers) -> Numbers:
    small = np.exp(-np.abs(x))  # never overflows, unlike exp(-x)
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _erf(x: Numbers) -> Numbers:
    return np.fromiter(map(math.erf, x.reshape(-1).tolist()), np.float64, x.size).reshape(x.shape)


def _softplus(x: Numbers) -> Numbers:
    return np.logaddexp(0.0, x)


def _elu(x: Numbers, alpha: float, gamma: float = 1.0) -> Numbers:
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _exp(x: Numbers) -> Numbers:
    with np.errstate(over="ignore"):
        return np.exp(x)


def _power(exponent: float) -> ScalarFunction:
    return unary(f"Pow[{exponent!r}]", lambda x: x**exponent, monotone=exponent != 2.0)


def _leaky_relu(attributes: Attributes) -> ScalarFunction:
    alpha = float(attributes.get("alpha", 0.01))
    return unary(f"LeakyRelu[{alpha!r}]", lambda x: np.where(x < 0, alpha * x, x), monotone=alpha >= 0)


def _hard_sigmoid(attributes: Attributes) -> ScalarFunction:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return unary(f"HardSigmoid[{alpha!r},{beta!r}]", lambda x: np.clip(alpha * x + beta, 0.0, 1.0))


def _gelu(attributes: Attributes) -> ScalarFunction:
    if attributes.get("approximate", "none") == "tanh":
        scale = math.sqrt(2.0 / math.pi)
        return unary("Gelu[tanh]", lambda x: 0.5 * x * (1.0 + np.tanh(scale * (x + 0.044715 * x**3))), monotone=False)
    return unary("Gelu", lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))), monotone=False)


def _make_elu(attributes: Attributes) -> ScalarFunction:
    alpha = float(attributes.get("alpha", 1.0))
    return unary(f"Elu[{alpha!r}]", lambda x: _elu(x, alpha), monotone=alpha >= 0)


def _celu(attributes: Attributes) -> ScalarFunction:
    alpha = float(attributes.get("alpha", 1.0))
    return unary(f"Celu[{alpha!r}]", lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0) / alpha)))


def _selu(attributes: Attributes) -> ScalarFunction:
    alpha = float(attributes.get("alpha", 1.67326319217681884765625))
    gamma = float(attributes.get("gamma", 1.05070102214813232421875))
    return unary(f"Selu[{alpha!r},{gamma!r}]", lambda x: _elu(x, alpha, gamma), monotone=alpha >= 0)


def _constant_attributes(function: ScalarFunction) -> Callable[[Attributes], ScalarFunction]:
    return lambda _: function


UNARY: Mapping[str, Callable[[Attributes], ScalarFunction]] = {
    "Abs": _constant_attributes(unary("Abs", np.abs, monotone=False)),
    "Celu": _celu,
    "Elu": _make_elu,
    "Erf": _constant_attributes(unary("Erf", _erf)),
    "Exp": _constant_attributes(unary("Exp", _exp)),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _constant_attributes(
        unary("HardSwish", lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0), monotone=False)
    ),
    "LeakyRelu": _leaky_relu,
    "Mish": _constant_attributes(unary("Mish", lambda x: x * np.tanh(_softplus(x)), monotone=False)),
    "Neg": _constant_attributes(unary("Neg", np.negative)),
    "Relu": _constant_attributes(unary("Relu", lambda x: np.maximum(x, 0.0))),
    "Selu": _selu,
    "Sigmoid": _constant_attributes(unary("Sigmoid", _sigmoid)),
    "Softplus": _constant_attributes(unary("Softplus", _softplus)),
    "Softsign": _constant_attributes(unary("Softsign", lambda x: x / (1.0 + np.abs(x)))),
    "Tanh": _constant_attributes(unary("Tanh", np.tanh)),
}

BINARY: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = {
    "Add": np.add,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "Pow": np.power,
    "Sub": np.subtract,
}
