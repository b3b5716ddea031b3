"""Ratios between sides, their spread, and the noise of a side against itself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median


@dataclass(frozen=True)
class Ratio:
    """The median of pairwise ratios, with the smallest and the largest."""

    median: float
    low: float
    high: float


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio | None:
    """Return the ratio of measurements taken in turns, or None where a side has none.

    Args:
        numerators: One number for each repetition.
        denominators: One number for each repetition; where a slow side ran less often, its median stands for the rest.
    """
    if not numerators or not denominators:
        return None
    turns = max(len(numerators), len(denominators))
    pairs = [a / b for a, b in zip(_filled(numerators, turns), _filled(denominators, turns), strict=True) if b > 0]
    return Ratio(median(pairs), min(pairs), max(pairs)) if pairs else None


def _filled(values: Sequence[float], turns: int) -> list[float]:
    return [*values, *[median(values)] * (turns - len(values))]


def noise(values: Sequence[float]) -> float | None:
    """Return by what factor (>= 1) the same side differed between consecutive runs, or None for fewer than two runs."""
    factors = [math.exp(abs(math.log(a / b))) for a, b in pairwise(values) if a > 0 and b > 0]
    return max(factors) if factors else None
