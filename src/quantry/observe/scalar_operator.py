"""Operators that make one number of one or two numbers.

To add one: a line in `OPERATORS` here and, if its attributes need reading, one in `elementwise`. Where an operator is
missing nothing is lost but time: its output is then observed instead of derived.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScalarOperator:
    """What an operator computes.

    Attributes:
        compute: From operands, float64 arrays of one shape, and parameters to results.
        monotone: Says for given parameters whether the result only rises or only falls with the first operand while the
            others are constant.
        constant_first: Whether that is so too for the second operand while the first is constant.
    """

    compute: Callable[..., Numbers]
    monotone: Callable[..., bool] = lambda *_: True
    constant_first: bool = False


def _never(*_: float) -> bool:
    return False


def _rises_if_not_negative(slope: float, *_: float) -> bool:
    return slope >= 0


def _sigmoid(x: Numbers) -> Numbers:
    small = np.exp(-np.abs(x))  # never overflows, unlike exp(-x)
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _erf(x: Numbers) -> Numbers:
    return np.fromiter(map(math.erf, x.reshape(-1).tolist()), np.float64, x.size).reshape(x.shape)


def _softplus(x: Numbers) -> Numbers:
    return np.logaddexp(0.0, x)


def _selu(x: Numbers, alpha: float, gamma: float) -> Numbers:
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _celu(x: Numbers, alpha: float) -> Numbers:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0) / alpha))


def _gelu_tanh(x: Numbers) -> Numbers:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _hard_swish(x: Numbers) -> Numbers:
    return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)


def _leaky(x: Numbers, alpha: Any) -> Numbers:
    return np.where(x < 0, alpha * x, x)


OPERATORS: Mapping[str, ScalarOperator] = {
    "Abs": ScalarOperator(np.abs, _never),
    "Add": ScalarOperator(np.add, constant_first=True),
    "Celu": ScalarOperator(_celu),
    "Div": ScalarOperator(np.divide),
    "Elu": ScalarOperator(lambda x, alpha: _selu(x, alpha, 1.0), _rises_if_not_negative),
    "Erf": ScalarOperator(_erf),
    "Exp": ScalarOperator(np.exp),
    "Gelu": ScalarOperator(lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))), _never),
    "GeluTanh": ScalarOperator(_gelu_tanh, _never),
    "HardSigmoid": ScalarOperator(lambda x, alpha, beta: np.clip(alpha * x + beta, 0.0, 1.0)),
    "HardSwish": ScalarOperator(_hard_swish, _never),
    "LeakyRelu": ScalarOperator(_leaky, _rises_if_not_negative),
    "Max": ScalarOperator(np.maximum, constant_first=True),
    "Min": ScalarOperator(np.minimum, constant_first=True),
    "Mish": ScalarOperator(lambda x: x * np.tanh(_softplus(x)), _never),
    "Mul": ScalarOperator(np.multiply, constant_first=True),
    "Neg": ScalarOperator(np.negative),
    "PRelu": ScalarOperator(_leaky, _rises_if_not_negative),
    "Pow": ScalarOperator(np.power, lambda exponent: exponent in (1.0, 3.0)),
    "Relu": ScalarOperator(lambda x: np.maximum(x, 0.0)),
    "Selu": ScalarOperator(_selu, _rises_if_not_negative),
    "Sigmoid": ScalarOperator(_sigmoid),
    "Softplus": ScalarOperator(_softplus),
    "Softsign": ScalarOperator(lambda x: x / (1.0 + np.abs(x))),
    "Sub": ScalarOperator(np.subtract, constant_first=True),
    "Tanh": ScalarOperator(np.tanh),
}
