"""Steps of training for all rows of a layer at once, in numpy; the twin of what `compiled_rows` does."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from quantry.numerics import kernels
from quantry.tune.row_problem import HIGH, LOW, RowProblem

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam (https://arxiv.org/abs/1412.6980)."""

RATE, SPREAD, BETA, WEIGHT = range(4)
"""Columns of a schedule, which has one row for each step: Adam's learning rate and the factor of its second moment,
corrected for the number of steps; exponent and weight of AdaRound's second term, 0 where it is not in force."""


class RowSteps(Protocol):
    """Trains rows; keeps what is trained."""

    def advance(self, schedule: Single) -> Float:
        """Make a step for each row of a schedule; return the loss before each."""
        ...

    def trained(self) -> tuple[Single, Single]:
        """Return the trained numbers ``[groups, rows, width]`` and biases ``[groups, rows]``."""
        ...


class NumpyRows:
    """Trains in numpy.

    Args:
        problem: What to train; it is left as it was.
    """

    def __init__(self, problem: RowProblem) -> None:
        self._problem = problem
        self._value, self._bias = problem.value.copy(), problem.bias.copy()
        self._moments = np.zeros_like(self._value), np.zeros_like(self._value)
        self._bias_moments = np.zeros_like(self._bias), np.zeros_like(self._bias)

    def advance(self, schedule: Single) -> Float:
        """Make a step for each row of a schedule; return the loss before each."""
        floor = self._problem.floor
        losses = [self._quantize(entry) if floor is None else self._round(floor, entry) for entry in schedule]
        return np.array(losses, np.float64)

    def trained(self) -> tuple[Single, Single]:
        """Return the trained numbers and biases."""
        return self._value, self._bias

    def _round(self, floor: Single, entry: Single) -> float:
        problem = self._problem
        with np.errstate(over="ignore"):
            sigmoid = 1.0 / (1.0 + np.exp(-self._value))
        up = np.clip(sigmoid * (HIGH - LOW) + LOW, 0.0, 1.0)
        levels = floor + up
        weight = np.clip(levels, problem.lowest, problem.highest) * problem.scale
        product = problem.times_gram(weight)
        slope = 2.0 * (product - problem.cross) * problem.scale
        slope *= (levels >= problem.lowest) & (levels <= problem.highest)
        if entry[WEIGHT]:
            centered = 2.0 * up - 1.0
            away = np.power(np.maximum(np.abs(centered), 1e-30), entry[BETA] - 1.0) * np.sign(centered)
            slope -= 2.0 * entry[BETA] * entry[WEIGHT] * away
        slope *= sigmoid * (1.0 - sigmoid) * (HIGH - LOW) * ((up > 0.0) & (up < 1.0))
        _adam(self._value, self._moments, slope, entry)
        return _inner(weight, product - 2.0 * problem.cross)

    def _quantize(self, entry: Single) -> float:
        problem = self._problem
        levels = np.rint(self._value / problem.scale)
        weight = np.clip(levels, problem.lowest, problem.highest) * problem.scale
        product = problem.times_gram(weight)
        shift = (weight @ problem.mean[:, :, None])[:, :, 0] + problem.bias_grid.round(self._bias) - problem.target
        slope = 2.0 * (product - problem.cross + shift[:, :, None] * problem.mean[:, None, :])
        slope *= (levels >= problem.lowest) & (levels <= problem.highest)
        _adam(self._value, self._moments, slope, entry)
        if problem.bias_moves:
            _adam(self._bias, self._bias_moments, 2.0 * shift, entry)
        return _inner(weight, product - 2.0 * problem.cross) + _inner(shift, shift)


def row_steps(problem: RowProblem) -> RowSteps:
    """Return the fastest way to train rows that there is."""
    from quantry.tune.compiled_rows import CompiledRows

    compiled = kernels.loaded()
    return NumpyRows(problem) if compiled is None else CompiledRows(problem, compiled)


def _adam(value: Single, moments: tuple[Single, Single], slope: npt.NDArray[Any], entry: Single) -> None:
    first, second = moments
    first *= BETAS[0]
    first += (1.0 - BETAS[0]) * slope
    second *= BETAS[1]
    second += (1.0 - BETAS[1]) * slope * slope
    value -= entry[RATE] * first / (np.sqrt(second * entry[SPREAD]) + EPSILON)


def _inner(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    # Sums of rows are exact enough in float32; what all rows add up to is not.
    return float((one * other).sum(-1).astype(np.float64).sum())
