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
    """Return the ratio of measurements taken in turns, or None where there is no pair.

    Args:
        numerators: One number for each repetition.
        denominators: One number for each repetition; the longer of the two is cut.
    """
    pairs = [a / b for a, b in zip(numerators, denominators, strict=False) if b > 0]
    return Ratio(median(pairs), min(pairs), max(pairs)) if pairs else None


def noise(values: Sequence[float]) -> float | None:
    """Return by what factor (>= 1) the same side differed between consecutive runs, or None for fewer than two runs."""
    factors = [math.exp(abs(math.log(a / b))) for a, b in pairwise(values) if a > 0 and b > 0]
    return max(factors) if factors else None
