"""Where a tensor's values lie, as mass in intervals; what every calibration method integrates over.

What is known of one tensor after the float pass; every calibration method starts from here.

Quantiles of counted values, interpolated inside the bins.

They are found in the histogram as it was counted, because one of thousands of bins decides: a code is the upper half of
a float32, so the bins of one magnitude have the same ends on both sides of zero, but for those of the two extremes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError

Number = TypeVar("Number", np.uint16, np.int64)

NEGATIVE = 0x8000
"""The sign bit of a code; a code is the upper half of a float32's bits."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """Mass in disjoint intervals, ascending; spread evenly inside each interval.

    Attributes:
        lower: Left ends, float64 [k].
        upper: Right ends, float64 [k]; equal to ``lower`` for a point mass.
        counts: Number of values in each interval, float64 [k], all above zero.

    Example:
        >>> Distribution(np.array([0.0]), np.array([2.0]), np.array([5.0])).total
        5.0
    """

    lower: npt.NDArray[np.float64]
    upper: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]

    @property
    def total(self) -> float:
        """Number of values in all intervals together."""
        return float(self.counts.sum())


def code_bounds(codes: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the ends of the values that share each code, in ascending order of value within each pair.

    A code is the upper half of a float32: all floats with equal sign, exponent and upper seven bits of the mantissa.

    Args:
        codes: Codes of finite values, [k].

    Returns:
        Left and right ends, float64 [k] each. The ends of the two codes around zero are both zero, because the only
        other values there are denormals below 1e-40.
    """
    lower, upper = _all_bounds()
    return lower[codes].astype(np.float64), upper[codes].astype(np.float64)


# The same table of 65,536 codes for every tensor; computing it takes 0.5 ms.
@cache
def _all_bounds() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the ends for every code, which float32 holds exactly; those of infinities and NaN mean nothing."""
    magnitude = np.arange(NEGATIVE, dtype=np.uint32)
    near = (magnitude << 16).view(np.float32)
    far = ((magnitude + 1) << 16).view(np.float32)
    far[0] = 0.0
    return np.concatenate([near, -far]), np.concatenate([far, -near])


def histogram_distribution(
    codes: npt.NDArray[np.uint16], counts: npt.NDArray[np.int64], minimum: float, maximum: float
) -> Distribution:
    """Return the distribution of a float-bits histogram.

    Args:
        codes: Ascending codes of finite values, [k].
        counts: Number of values of each code, [k].
        minimum: Smallest value, exact.
        maximum: Largest value, exact.

    Returns:
        Its intervals in ascending order of value, clipped to ``[minimum, maximum]``; both zeros are one point mass.
    """
    codes, counts = _join_zeros(codes, counts)
    first_negative = int(np.searchsorted(codes, NEGATIVE))
    lower, upper = code_bounds(_ascending(codes, first_negative))
    for ends in (lower, upper):
        np.minimum(np.maximum(ends, minimum, out=ends), maximum, out=ends)
    return Distribution(lower, upper, _ascending(counts, first_negative).astype(np.float64))


def _ascending(of_codes: npt.NDArray[Number], first_negative: int) -> npt.NDArray[Number]:
    """Return what belongs to ascending codes in ascending order of their values: negative codes count down."""
    return np.concatenate([of_codes[first_negative:][::-1], of_codes[:first_negative]])


def _join_zeros(
    codes: npt.NDArray[np.uint16], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Count minus zero as zero."""
    minus_zero = int(np.searchsorted(codes, NEGATIVE))
    if minus_zero == len(codes) or codes[minus_zero] != NEGATIVE:
        return codes, counts
    minus = counts[minus_zero]
    codes, counts = np.delete(codes, minus_zero), np.delete(counts, minus_zero)
    if len(codes) and codes[0] == 0:
        counts[0] += minus
        return codes, counts
    return np.concatenate([np.zeros(1, np.uint16), codes]), np.concatenate([minus[None], counts])


FloatArray = npt.NDArray[np.float32]
Histogram = tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]
"""Codes that occurred, ascending, [k], and how often each did, [k]."""


@dataclass(frozen=True, eq=False)
class TensorStats:
    """Method-neutral statistics of one tensor; bounded in size, merged by addition.

    NaN and infinities are counted apart and take no part in anything else.

    Attributes:
        minimum: Smallest finite value, exact; plus infinity when there is none.
        maximum: Largest finite value, exact; minus infinity when there is none.
        count: Number of values seen, NaN and infinities included.
        nan_count: How many of them were NaN.
        inf_count: How many of them were infinite.
        batch_minima: Smallest finite value of each sample fed, float32 [n].
        batch_maxima: Largest finite value of each sample fed, float32 [n].
        codes: Codes that occurred, ascending, uint16 [k]; a code is the upper half of a float32's bits.
        counts: Number of finite values of each code, int64 [k].
        channel_minima: Smallest value of each channel, float32 [c]; None unless it was asked for.
        channel_maxima: Largest value of each channel, float32 [c]; None unless it was asked for.
    """

    minimum: float
    maximum: float
    count: int
    nan_count: int
    inf_count: int
    batch_minima: FloatArray = field(repr=False)
    batch_maxima: FloatArray = field(repr=False)
    codes: npt.NDArray[np.uint16] = field(repr=False)
    counts: npt.NDArray[np.int64] = field(repr=False)
    channel_minima: FloatArray | None = field(default=None, repr=False)
    channel_maxima: FloatArray | None = field(default=None, repr=False)

    @property
    def finite_count(self) -> int:
        """Number of values that are neither NaN nor infinite."""
        return self.count - self.nan_count - self.inf_count

    def merge(self, other: "TensorStats") -> "TensorStats":
        """Return the statistics of both sets of values together.

        Associative, and commutative but for the order of the batches. Channel extrema survive only if both have them.
        """
        codes, counts = add_histograms([(self.codes, self.counts), (other.codes, other.counts)])
        return TensorStats(
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            count=self.count + other.count,
            nan_count=self.nan_count + other.nan_count,
            inf_count=self.inf_count + other.inf_count,
            batch_minima=np.concatenate([self.batch_minima, other.batch_minima]),
            batch_maxima=np.concatenate([self.batch_maxima, other.batch_maxima]),
            codes=codes,
            counts=counts,
            channel_minima=_join_channels(np.minimum, self.channel_minima, other.channel_minima),
            channel_maxima=_join_channels(np.maximum, self.channel_maxima, other.channel_maxima),
        )

    def distribution(self) -> Distribution:
        """Return the finite values as mass in ascending intervals, clipped to ``[minimum, maximum]``."""
        return histogram_distribution(self.codes, self.counts, self.minimum, self.maximum)


def add_histograms(parts: list[Histogram]) -> Histogram:
    """Return the sum of sparse histograms, codes ascending."""
    codes, position = np.unique(np.concatenate([codes for codes, _ in parts]), return_inverse=True)
    counts = np.zeros(len(codes), np.int64)
    np.add.at(counts, position, np.concatenate([counts for _, counts in parts]))
    return codes, counts


def _join_channels(
    join: Callable[[FloatArray, FloatArray], FloatArray], left: FloatArray | None, right: FloatArray | None
) -> FloatArray | None:
    if left is None or right is None:
        return None
    if left.shape != right.shape:
        raise InternalError(
            f"channel extrema can be merged only for equal channel counts, got {len(left)} and {len(right)}; "
            "TensorStats.merge"
        )
    return join(left, right)


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
