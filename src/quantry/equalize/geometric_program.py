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

Slope = tuple[np.ndarray, Floats]
"""Positions in ``u`` and what is added to the slope there."""


class Term(Protocol):
    """One term of the sum."""

    def evaluate(self, u: Floats) -> tuple[float, list[Slope]]:
        """Return the logarithm of the term and its slope.

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
    """

    peaks: Floats
    importance: Floats
    places: np.ndarray
    level: float

    def evaluate(self, u: Floats) -> tuple[float, list[Slope]]:
        """Return the logarithm of the term and its slope."""
        logarithms = u[self.places]
        highest = self.peaks.max()
        powers = (self.peaks / highest) ** NORM * np.exp(NORM * logarithms)
        counted = self.importance * np.exp(-2 * logarithms)
        steps, total = powers.sum(), counted.sum()
        value = self.level + 2 * np.log(highest) + 2 / NORM * np.log(steps) + np.log(total)
        return float(value), [(self.places, 2 * powers / steps - 2 * counted / total)]


@dataclass(frozen=True, eq=False)
class InverseScale:
    """The error of the inverse factors, which share a scale: ``max(exp(-u))**2 * sum(g exp(2 u))``.

    Attributes:
        importance: (n,) what the square of a relative error counts, not all 0.
        places: (n,) positions in ``u``.
        level: Logarithm of a constant factor.
    """

    importance: Floats
    places: np.ndarray
    level: float

    def evaluate(self, u: Floats) -> tuple[float, list[Slope]]:
        """Return the logarithm of the term and its slope."""
        mirrored = SharedScale(np.ones(len(self.places)), self.importance, self.places, self.level)
        value, slopes = mirrored.evaluate(-u)
        return value, [(places, -slope) for places, slope in slopes]


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

    def evaluate(self, u: Floats) -> tuple[float, list[Slope]]:
        """Return the logarithm of the term and its slope."""
        inside, energy = np.exp(-NORM * u[self.inputs]), self.energy * np.exp(2 * u[self.inputs])
        reached = np.matmul(self.powers, inside[:, :, None])[:, :, 0]
        if self.per_channel:
            return self._with_own_scales(inside, energy, reached)
        outside, counted = np.exp(NORM * u[self.outputs]), self.importance * np.exp(-2 * u[self.outputs])
        steps = (outside * reached).sum()
        back = np.matmul(outside[:, None, :], self.powers)[:, 0]
        fed, wanted = energy.sum(axis=1, keepdims=True), counted.sum(axis=1, keepdims=True)
        total = (fed * wanted).sum()
        value = self.level + 2 / NORM * np.log(steps) + np.log(total)
        return float(value), [
            (self.outputs, 2 * outside * reached / steps - 2 * counted * fed / total),
            (self.inputs, 2 * energy * wanted / total - 2 * inside * back / steps),
        ]

    def _with_own_scales(self, inside: Floats, energy: Floats, reached: Floats) -> tuple[float, list[Slope]]:
        known = np.maximum(reached, np.finfo(np.float64).tiny)
        errors = self.importance * known ** (2 / NORM)
        fed, wanted = energy.sum(axis=1, keepdims=True), errors.sum(axis=1, keepdims=True)
        total = (fed * wanted).sum()
        back = np.matmul((errors / known)[:, None, :], self.powers)[:, 0]
        slope = 2 * energy * wanted / total - 2 * inside * back * fed / total
        return float(self.level + np.log(total)), [(self.inputs, slope)]


def log_sum(terms: Sequence[Term], u: Floats, power: float = 1.0) -> tuple[float, Floats]:
    """Return the logarithm of the power mean of all terms times a constant, and its slope.

    Args:
        terms: The terms, at least one.
        u: (n,) logarithms of all factors; the first is 0.
        power: 1 is the sum of the terms. With a smaller power, small terms count more.
    """
    found = [term.evaluate(u) for term in terms]
    values = np.array([value for value, _ in found])
    shares = np.exp(power * (values - values.max()))
    total = shares.sum()
    every = [
        (places.reshape(-1), share * part.reshape(-1))
        for share, (_, parts) in zip(shares / total, found, strict=True)
        for places, part in parts
    ]
    # All at once: most terms have a few of the many factors.
    places, weights = (np.concatenate(column) for column in zip(*every, strict=True))
    slope = np.bincount(places, weights, minlength=len(u))
    slope[0] = 0.0
    return float(values.max() + np.log(total) / power), slope


_REMEMBERED = 12
_LEAST_STEP = 1e-10
_ENOUGH = 1e-4
"""Share of the expected decrease that a step must reach (Armijo)."""


def minimized(function: Callable[[Floats], tuple[float, Floats]], start: Floats, iterations: int) -> Floats:
    """Return where a convex function is smallest, found with L-BFGS.

    Nocedal and Wright, "Numerical Optimization", algorithm 7.4. A step that does not lower the function is halved.

    Args:
        function: Returns value and slope.
        start: Where to begin.
        iterations: Maximum number of steps.
    """
    place, (value, slope) = start, function(start)
    moves: list[tuple[Floats, Floats, float]] = []
    for _ in range(iterations):
        direction = -_newton_like(slope, moves)
        expected = float(direction @ slope)
        if not expected < -_LEAST_STEP:
            break
        length = 1.0 if moves else min(1.0, 1.0 / float(np.abs(direction).max()))
        while True:
            new_place = place + length * direction
            new_value, new_slope = function(new_place)
            if new_value <= value + _ENOUGH * length * expected:
                break
            length /= 2
            if length < _LEAST_STEP:
                return place
        moved, turned = new_place - place, new_slope - slope
        curvature = float(moved @ turned)
        if curvature > 0:
            moves = [*moves[-_REMEMBERED + 1 :], (moved, turned, 1.0 / curvature)]
        place, value, slope = new_place, new_value, new_slope
    return place


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
