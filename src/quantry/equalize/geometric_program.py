"""Sums of products of exponentials, and the factors that make them small.

``u`` is the vector of the logarithms of all factors. Its first entry is 0: the factor of everything that has none. The
logarithm of every term is convex in ``u``, and so is the logarithm of their sum, so there is one optimum (Boyd et al.,
"A tutorial on geometric programming", 2007). A maximum is replaced by a norm with a high exponent, which has a slope.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Floats = np.ndarray
"""float64."""

NORM = 32
"""Exponent of the norm that stands for a maximum: at most 1.25 times as large for a thousand values."""


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Some terms of the sum, evaluated.

    Attributes:
        values: (k,) logarithms of the terms.
        places: (n,) positions in ``u``.
        slopes: (n,) what each of these positions adds to the slope of its term.
        owners: (n,) which of the terms each belongs to.
    """

    values: Floats
    places: np.ndarray
    slopes: Floats
    owners: np.ndarray

    @classmethod
    def of_one(cls, value: float, slopes: Sequence[tuple[np.ndarray, Floats]]) -> "Evaluated":
        """Return a single term.

        Args:
            value: Its logarithm.
            slopes: Positions in ``u`` and the slopes there, in any shape.
        """
        places, parts = (
            np.concatenate([column.reshape(-1) for column in columns]) for columns in zip(*slopes, strict=True)
        )
        return cls(np.array([value]), places, parts, np.zeros(len(places), np.intp))


class Terms(Protocol):
    """One term of the sum, or several of one kind."""

    def evaluate(self, u: Floats) -> Evaluated:
        """Return the logarithms of the terms and their slopes.

        Args:
            u: Logarithms of all factors; the first is 0.
        """
        ...


@dataclass(frozen=True, eq=False)
class SharedScale:
    """The error of values that share a scale: ``max(p exp(u))**2 * sum(g exp(-2 u))``.

    Attributes:
        peaks: (n,) largest magnitudes, not all 0.
        importance: (n,) what the square of an error counts, not all 0.
        places: (n,) positions in ``u``.
        level: Logarithm of a constant factor.
        inverse: Whether the values are the inverse factors, with ``-u`` instead of ``u``.
    """

    peaks: Floats
    importance: Floats
    places: np.ndarray
    level: float
    inverse: bool = False


class SharedScales:
    """Many terms of the kind `SharedScale`, evaluated together: there are hundreds of them with few values each.

    Args:
        terms: The terms, at least one.
    """

    def __init__(self, terms: Sequence[SharedScale]) -> None:
        sizes = [len(term.places) for term in terms]
        highest = np.array([term.peaks.max() for term in terms])
        self._owners = np.repeat(np.arange(len(terms)), sizes)
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._places = np.concatenate([term.places for term in terms])
        self._signs = np.where([term.inverse for term in terms], -1.0, 1.0)[self._owners]
        self._powers = (np.concatenate([term.peaks for term in terms]) / highest[self._owners]) ** NORM
        self._importance = np.concatenate([term.importance for term in terms])
        self._levels = np.array([term.level for term in terms]) + 2 * np.log(highest)

    def evaluate(self, u: Floats) -> Evaluated:
        """Return the logarithms of the terms and their slopes."""
        logarithms = self._signs * u[self._places]
        powers = self._powers * np.exp(NORM * logarithms)
        counted = self._importance * np.exp(-2 * logarithms)
        steps, totals = np.add.reduceat(powers, self._starts), np.add.reduceat(counted, self._starts)
        values = self._levels + 2 / NORM * np.log(steps) + np.log(totals)
        slopes = 2 * self._signs * (powers / steps[self._owners] - counted / totals[self._owners])
        return Evaluated(values, self._places, slopes, self._owners)


@dataclass(frozen=True, eq=False)
class WeightScale:
    """The error of a weight: ``max(p exp(u_out - u_in))**2 * sum(e exp(2 u_in)) * sum(g exp(-2 u_out))``.

    With groups, each group has its own sums. With a scale for each output, the factors of outputs cancel.

    Attributes:
        powers: (groups, outputs/groups, inputs/groups) ``(p / max p)**NORM``, p being the largest ``|w|`` of a kernel.
        energy: (groups, inputs/groups) of the inputs, not all 0.
        importance: (groups, outputs/groups) of the outputs, not all 0.
        outputs, inputs: Positions in ``u``, in the same shapes.
        level: Logarithm of a constant factor.
        per_channel: Whether each output has a scale of its own.
    """

    powers: Floats
    energy: Floats
    importance: Floats
    outputs: np.ndarray
    inputs: np.ndarray
    level: float
    per_channel: bool

    def evaluate(self, u: Floats) -> Evaluated:
        """Return the logarithm of the term and its slope."""
        inside, energy = np.exp(-NORM * u[self.inputs]), self.energy * np.exp(2 * u[self.inputs])
        reached = np.matmul(self.powers, inside[:, :, None])[:, :, 0]
        if self.per_channel:
            return self._with_own_scales(inside, energy, reached)
        outside, counted = np.exp(NORM * u[self.outputs]), self.importance * np.exp(-2 * u[self.outputs])
        steps = (outside * reached).sum()
        back = np.matmul(outside[:, None, :], self.powers)[:, 0]
        fed, fanned = energy.sum(axis=1, keepdims=True), counted.sum(axis=1, keepdims=True)
        total = (fed * fanned).sum()
        value = self.level + 2 / NORM * np.log(steps) + np.log(total)
        slopes = [
            (self.outputs, 2 * outside * reached / steps - 2 * counted * fed / total),
            (self.inputs, 2 * energy * fanned / total - 2 * inside * back / steps),
        ]
        return Evaluated.of_one(float(value), slopes)

    def _with_own_scales(self, inside: Floats, energy: Floats, reached: Floats) -> Evaluated:
        nonzero = np.maximum(reached, np.finfo(np.float64).tiny)
        errors = self.importance * nonzero ** (2 / NORM)
        fed, fanned = energy.sum(axis=1, keepdims=True), errors.sum(axis=1, keepdims=True)
        total = (fed * fanned).sum()
        back = np.matmul((errors / nonzero)[:, None, :], self.powers)[:, 0]
        slope = 2 * energy * fanned / total - 2 * inside * back * fed / total
        return Evaluated.of_one(float(self.level + np.log(total)), [(self.inputs, slope)])


def log_sum(terms: Sequence[Terms], u: Floats, power: float = 1.0) -> tuple[float, Floats]:
    """Return the logarithm of the power mean of all terms times a constant, and its slope.

    Args:
        terms: The terms, at least one.
        u: (n,) logarithms of all factors; the first is 0.
        power: 1 is the sum of the terms. With a smaller power, small terms count more.
    """
    evaluated = [term.evaluate(u) for term in terms]
    values = np.concatenate([term_values.values for term_values in evaluated])
    shares = np.exp(power * (values - values.max()))
    total = shares.sum()
    term_shares = np.split(shares / total, np.cumsum([len(term_values.values) for term_values in evaluated[:-1]]))
    # All at once: most terms have a few of the many factors.
    places = np.concatenate([term_values.places for term_values in evaluated])
    weights = np.concatenate(
        [
            term_share[term_values.owners] * term_values.slopes
            for term_values, term_share in zip(evaluated, term_shares, strict=True)
        ]
    )
    slope = np.bincount(places, weights, minlength=len(u))
    slope[0] = 0.0
    return float(values.max() + np.log(total) / power), slope


_REMEMBERED = 12
_LEAST_STEP = 1e-10
_ENOUGH = 1e-4
"""Share of the expected decrease that a step must reach (Armijo)."""


def minimize_posynomial(function: Callable[[Floats], tuple[float, Floats]], start: Floats, iterations: int) -> Floats:
    """Return where a convex function is smallest, found with L-BFGS.

    Nocedal and Wright, "Numerical Optimization", algorithm 7.4. A step that does not lower the function is halved.

    Args:
        function: Returns value and slope.
        start: Where to begin.
        iterations: Maximum number of steps.
    """
    point, (value, slope) = start, function(start)
    moves: list[tuple[Floats, Floats, float]] = []
    for _ in range(iterations):
        direction = -_newton_like(slope, moves)
        expected = float(direction @ slope)
        if not expected < -_LEAST_STEP:
            break
        length = 1.0 if moves else min(1.0, 1.0 / float(np.abs(direction).max()))
        while True:
            new_place = point + length * direction
            new_value, new_slope = function(new_place)
            if new_value <= value + _ENOUGH * length * expected:
                break
            length /= 2
            if length < _LEAST_STEP:
                return point
        moved, turned = new_place - point, new_slope - slope
        curvature = float(moved @ turned)
        if curvature > 0:
            moves = [*moves[-_REMEMBERED + 1 :], (moved, turned, 1.0 / curvature)]
        point, value, slope = new_place, new_value, new_slope
    return point


def _newton_like(slope: Floats, moves: Sequence[tuple[Floats, Floats, float]]) -> Floats:
    """Return the slope times an estimate of the inverse curvature, from the last moves."""
    result = slope.copy()
    shares = []
    for moved, turned, inverse in reversed(moves):
        share = inverse * float(moved @ result)
        shares.append(share)
        result -= share * turned
    if moves:
        moved, turned, _ = moves[-1]
        result *= float(moved @ turned) / float(turned @ turned)
    for (moved, turned, inverse), share in zip(moves, reversed(shares), strict=True):
        result += (share - inverse * float(turned @ result)) * moved
    return result
