"""Where a function of one number turns from rising to falling or back.

Between turning points extremes map to extremes, so knowing them makes the minimum and maximum of ``f(x)`` exact: they
are attained at the smallest or largest ``x``, or at the ``x`` nearest to a turning point on either side.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from quantry.observe.scalar_function import ScalarFunction
from quantry.observe.scalar_operator import Numbers

MAX_TURNING_POINTS = 3
NOISE = 1e-9
"""Turns smaller than this, relative to the function's values at no larger arguments, are rounding errors."""


@dataclass(frozen=True)
class TurningPoint:
    """A place where a function turns.

    Attributes:
        position: Where.
        tolerance: Distance from there within which the function equals its extreme to float32 rounding.
    """

    position: float
    tolerance: float


@lru_cache(maxsize=1024)
def turning_points(function: ScalarFunction) -> tuple[TurningPoint, ...] | None:
    """Return where a function turns, ascending; None if it turns too often to be followed.

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
    """Return one float for each code of finite values, ascending; both zeros are one."""
    magnitudes: npt.NDArray[np.float32] = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    positive = magnitudes.astype(np.float64)
    # Squares and cubes of float32 arguments beyond this are infinite; no activation gets there and stays finite.
    positive = positive[positive < 1e12]
    return np.concatenate([-positive[:0:-1], positive])


def _turns(grid: Numbers, values: Numbers) -> list[int] | None:
    """Return the indices of the turns; None if the function is not finite everywhere on the grid."""
    if not np.isfinite(values).all():
        return None
    noise = _noise_floor(grid, values)
    turns: list[int] = []
    direction, extreme = 0, 0
    # Only where the slope changes its sign can a turn be; a walk over those few candidates applies the hysteresis.
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
        left, right = sign * function.evaluate(np.array([low + third, high - third]))
        low, high = (low, high - third) if left < right else (low + third, high)
    position = float(low + high) / 2
    return TurningPoint(position, _tolerance(function, position))


def _tolerance(function: ScalarFunction, position: float) -> float:
    """Return how far from the turn the function still rounds to its extreme."""
    extreme = function.evaluate(np.array([position]))[0]
    allowed = float(np.spacing(np.float32(abs(extreme)))) / 4
    width = max(abs(position), 1e-30)
    for _ in range(100):
        width /= 2
        around = function.evaluate(np.array([position - width, position + width]))
        if np.abs(around - extreme).max() <= allowed:
            return float(width)
    return 0.0
