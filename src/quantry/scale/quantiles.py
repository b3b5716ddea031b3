"""Quantiles of counted values, interpolated inside the bins.

They are found in the histogram as it was counted, because one of thousands of bins decides: a code is the upper half of
a float32, so the bins of one magnitude have the same ends on both sides of zero, but for those of the two extremes.
"""

from typing import NamedTuple

import numpy as np

from quantry.observe import TensorStats
from quantry.observe.distribution import NEGATIVE, code_bounds


class _Bin(NamedTuple):
    lower: float
    upper: float
    mass: float


def quantile(stats: TensorStats, fraction: float) -> float:
    """Return the smallest value that has at least this fraction of the mass at or below it.

    Args:
        stats: The values, at least one of them finite.
        fraction: In [0, 1].
    """
    codes, counts = stats.codes, stats.counts
    first_negative = int(codes.searchsorted(NEGATIVE))
    mass = fraction * float(counts.sum())
    below = float(counts[first_negative:].sum())
    if first_negative < len(codes) and mass <= below:
        # Negative codes count down.
        codes, counts, below = codes[first_negative:][::-1], counts[first_negative:][::-1], 0.0
    else:
        codes, counts = codes[:first_negative], counts[:first_negative]
    running = below + np.cumsum(counts, dtype=np.float64)
    index = min(int(running.searchsorted(mass)), len(running) - 1)
    lower, upper, count = _bin(codes[index], (stats.minimum, stats.maximum), counts[index])
    missing = float(running[index] - mass) / count
    return min(max(upper - (upper - lower) * missing, lower), upper)


def magnitude_quantile(stats: TensorStats, fraction: float) -> float:
    """Return the smallest ``t`` for which at least this fraction of the mass lies in ``[-t, t]``.

    Args:
        stats: The values, at least one of them finite.
        fraction: In [0, 1].
    """
    if fraction >= 1:
        return max(-stats.minimum, stats.maximum, 0.0)
    # Neither tail alone may hold more than what is cut off, so t is no smaller than either quantile.
    right = quantile(stats, fraction)
    if right >= -stats.minimum:
        return max(right, 0.0)  # nothing lies left of -t
    bound = abs(max(right, -quantile(stats, 1.0 - fraction), 0.0))  # not minus zero, whose code is another
    # The bound may lie on the edge of a bin, or be rounded across it.
    nearest = max(int(np.float32(bound).view(np.uint32)) // 2**16 - 1, 0)
    return _in_tails(stats, nearest, fraction * float(stats.counts.sum()))


def _in_tails(stats: TensorStats, nearest: int, mass: float) -> float:
    """Return the smallest ``t`` with at least this mass in ``[-t, t]``, given a magnitude's code that is no larger."""
    first_negative = int(stats.codes.searchsorted(NEGATIVE))
    right = slice(int(stats.codes.searchsorted(nearest)), first_negative)
    left = slice(int(stats.codes.searchsorted(NEGATIVE + nearest)), len(stats.codes))
    inner = float(stats.counts[: right.start].sum() + stats.counts[first_negative : left.start].sum())
    if nearest and inner >= mass:
        # The left tail has exactly the mass that is cut off, so the quantile is its end, and t the next value inwards.
        return _in_tails(stats, 0, mass)
    magnitudes = np.concatenate([stats.codes[right], stats.codes[left] - NEGATIVE])
    counts = np.concatenate([stats.counts[right], stats.counts[left]])
    order = np.argsort(magnitudes, kind="stable")
    running = inner + np.cumsum(counts[order], dtype=np.float64)
    code = magnitudes[order[min(int(running.searchsorted(mass)), len(running) - 1)]]
    first, end = (int(magnitudes.searchsorted(code, side, sorter=order)) for side in ("left", "right"))
    sides = (stats.minimum, stats.maximum), (-stats.maximum, -stats.minimum)
    bins = [_bin(code, sides[int(index >= right.stop - right.start)], counts[index]) for index in order[first:end]]
    return _value_at(bins, mass - (float(running[first - 1]) if first else inner))


def _bin(code: np.uint16, extremes: tuple[float, float], count: np.int64) -> _Bin:
    """Return the bin of a code, or of a magnitude on one side of zero, within the extremes of what it counts."""
    lower, upper = (min(max(float(end[0]), extremes[0]), extremes[1]) for end in code_bounds(np.array([code])))
    return _Bin(lower, upper, float(count))


def _value_at(bins: list[_Bin], mass: float) -> float:
    """Return the smallest value with at least this mass at or below it in bins with the same lower end."""
    lower = bins[0].lower
    mass -= sum(entry.mass for entry in bins if entry.upper == entry.lower)
    spread = sorted((entry for entry in bins if entry.upper > entry.lower), key=lambda entry: entry.upper)
    if mass <= 0 or not spread:
        return lower
    shorter, longer = spread[0], spread[-1]
    density = sum(entry.mass / (entry.upper - entry.lower) for entry in spread)
    if mass <= density * (shorter.upper - lower):
        return lower + mass / density
    beyond = (mass - density * (shorter.upper - lower)) * (longer.upper - lower) / longer.mass
    return min(shorter.upper + beyond, longer.upper)
