"""Functions of one number: chains of elementwise operators, evaluated in NumPy.

To add an operator: one line in `OPERATORS`, and `scalar=Scalar(...)` with its attributes in its row of
`quantry.facts.operators`. The output of an operator that is missing here is observed instead of derived, which only
costs time.

Between the *turning points* of a function, extremes map to extremes. Knowing the turning points makes the minimum and
maximum of ``f(x)`` exact: they are reached at the smallest or largest ``x``, or at the ``x`` nearest to a turning point
on either side.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScalarOperator:
    """One elementwise operator.

    Attributes:
        compute: Maps operands, float64 arrays of one shape, and parameters to results.
        monotone: Returns for given parameters whether the result only rises or only falls with the first operand while
            the others are constant.
        constant_first: Whether the same is true for the second operand while the first is constant.
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


MAX_OPERATORS = 24
"""Longer chains are not followed, because a formula that uses its argument twice doubles at each step."""

_ARGUMENT = "argument"
_CONSTANT = "constant"


@dataclass(frozen=True)
class ScalarFunction:
    """A function applied to every element of a tensor: a tree of operators over its argument and constants.

    Attributes:
        operator: A key of `OPERATORS`, or "argument" or "constant" at a leaf.
        parameters: Parameters of the operator, or the constant.
        operands: The operands of the operator.

    Example:
        >>> silu = ScalarFunction("Mul", (), (IDENTITY, ScalarFunction("Sigmoid", (), (IDENTITY,))))
        >>> silu.evaluate(np.array([0.0, 20.0])).round(6).tolist()
        [0.0, 20.0]
    """

    operator: str
    parameters: tuple[float, ...] = ()
    operands: tuple["ScalarFunction", ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant leaf."""
        return self.operator == _CONSTANT

    @property
    def size(self) -> int:
        """Number of operators in the tree."""
        return sum(operand.size for operand in self.operands) + (1 if self.operands else 0)

    @property
    def monotone(self) -> bool:
        """Whether it is known to only rise or only fall."""
        if not self.operands:
            return True
        operator = OPERATORS[self.operator]
        moving = [operand for operand in self.operands if not operand.is_constant]
        if len(moving) != 1 or not moving[0].monotone:
            return False
        if self.operands[0].is_constant:
            return operator.constant_first
        constants = [value for operand in self.operands[1:] for value in operand.parameters]
        return operator.monotone(*constants, *self.parameters)

    def evaluate(self, x: Numbers) -> Numbers:
        """Return the function of each number, of the same shape as ``x``; overflow gives infinity without a warning."""
        with np.errstate(all="ignore"):
            return self._evaluate(x)

    def after(self, inner: "ScalarFunction") -> "ScalarFunction":
        """Return the function that applies ``inner`` first and this one to its result."""
        if inner == IDENTITY:
            return self
        if not self.operands:
            return inner if self == IDENTITY else self
        operands = tuple(operand.after(inner) for operand in self.operands)
        return ScalarFunction(self.operator, self.parameters, operands)

    def to_plain(self) -> list[Any]:
        """Return it as nested lists of strings and numbers, for storage."""
        return [self.operator, list(self.parameters), [operand.to_plain() for operand in self.operands]]

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return the function that ``to_plain`` wrote."""
        operator, parameters, operands = plain
        return cls(str(operator), tuple(map(float, parameters)), tuple(cls.from_plain(operand) for operand in operands))

    def _evaluate(self, x: Numbers) -> Numbers:
        if self.operator == _ARGUMENT:
            return x
        if self.operator == _CONSTANT:
            return np.float64(self.parameters[0])  # type: ignore[return-value]  # broadcasts like an array
        operands = [operand._evaluate(x) for operand in self.operands]
        return OPERATORS[self.operator].compute(*operands, *self.parameters)


IDENTITY = ScalarFunction(_ARGUMENT)


def constant(value: float) -> ScalarFunction:
    """Return the leaf of a constant."""
    return ScalarFunction(_CONSTANT, (value,))


MAX_TURNING_POINTS = 3
NOISE = 1e-9
"""Turns smaller than this, relative to the largest value at arguments of smaller magnitude, are rounding errors."""


@dataclass(frozen=True)
class TurningPoint:
    """A place where a function turns from rising to falling or back.

    Attributes:
        position: The argument.
        tolerance: Distance from it within which the function equals its extreme to float32 rounding.
    """

    position: float
    tolerance: float


# Most models have few different functions for hundreds of tensors: the demo detector takes 2 ms instead of 610 ms.
@lru_cache(maxsize=1024)
def turning_points(function: ScalarFunction) -> tuple[TurningPoint, ...] | None:
    """Return where a function turns, ascending; None if it has too many turns.

    Functions not known to be monotone are evaluated at 65,280 floats, one for each sign, exponent and upper seven bits
    of the mantissa, and each turn found there is refined.
    """
    if function.monotone:
        return ()
    grid = _grid()
    turns = _turns(grid, function.evaluate(grid))
    if turns is None or len(turns) > MAX_TURNING_POINTS:
        return None
    return tuple(_refine(function, grid[turn - 1], grid[turn + 1]) for turn in turns)


def _grid() -> Numbers:
    """Return one float for each code of finite values, ascending, with a single zero."""
    magnitudes: npt.NDArray[np.float32] = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    positive = magnitudes.astype(np.float64)
    # Squares and cubes of larger float32 arguments are infinite; no activation is that large and stays finite.
    positive = positive[positive < 1e12]
    return np.concatenate([-positive[:0:-1], positive])


def _turns(grid: Numbers, values: Numbers) -> list[int] | None:
    """Return the indices of the turns; None if the function is not finite everywhere on the grid."""
    if not np.isfinite(values).all():
        return None
    noise = _noise_floor(grid, values)
    turns: list[int] = []
    direction, extreme = 0, 0
    # A turn needs a change of the slope's sign. The loop over those few candidates skips changes that are only noise.
    slope = np.sign(np.diff(values))
    moving = np.flatnonzero(slope)
    changes = moving[1:][slope[moving[1:]] != slope[moving[:-1]]]
    candidates = [*changes.tolist(), len(values) - 1]
    if len(candidates) > 4096:
        return None
    for candidate in candidates:
        step = values[candidate] - values[extreme]
        if abs(step) <= noise[candidate]:
            continue
        towards = 1 if step > 0 else -1
        if direction not in (0, towards):
            turns.append(extreme)
        direction, extreme = towards, candidate
    return turns


def _noise_floor(grid: Numbers, values: Numbers) -> Numbers:
    """Return for each point the largest value at arguments of no larger magnitude, times `NOISE`."""
    middle = len(grid) // 2
    outward = np.maximum(np.abs(values[middle:]), np.abs(values[middle::-1]))
    largest = np.maximum.accumulate(outward)
    return NOISE * np.concatenate([largest[:0:-1], largest])


def _refine(function: ScalarFunction, low: float, high: float) -> TurningPoint:
    """Return the turn between two arguments, by ternary search."""
    middle = (low + high) / 2
    ends, inside = function.evaluate(np.array([low, high])), function.evaluate(np.array([middle]))[0]
    sign = 1.0 if inside <= ends.min() else -1.0
    for _ in range(100):
        third = (high - low) / 3
        lower, upper = sign * function.evaluate(np.array([low + third, high - third]))
        low, high = (low, high - third) if lower < upper else (low + third, high)
    position = float(low + high) / 2
    return TurningPoint(position, _tolerance(function, position))


def _tolerance(function: ScalarFunction, position: float) -> float:
    """Return the distance from the turn within which the function still rounds to its extreme."""
    extreme = function.evaluate(np.array([position]))[0]
    allowed = float(np.spacing(np.float32(abs(extreme)))) / 4
    width = max(abs(position), 1e-30)
    for _ in range(100):
        width /= 2
        around = function.evaluate(np.array([position - width, position + width]))
        if np.abs(around - extreme).max() <= allowed:
            return float(width)
    return 0.0
