"""Histograms of a tensor's values: what was counted, the distribution they stand for, and their quantiles.

A histogram counts *codes*, the upper 16 bits of a float32: sign, exponent and 7 bits of the mantissa. `TensorStats` has
the histogram of one tensor, `Distribution` is the same as mass in intervals, which calibration methods integrate over.

`quantile` and `magnitude_quantile` are what percentile calibration uses. They interpolate inside the bins, and work on
the histogram itself because only one of thousands of bins decides. The bins of one magnitude have the same ends on both
sides of zero, except for those of the two extremes.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError

Number = TypeVar("Number", np.uint16, np.int64)

NEGATIVE = 0x8000
"""The sign bit of a code."""


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
    """Return the smallest and largest value with each code.

    Args:
        codes: Codes of finite values, [k].

    Returns:
        Left and right ends, float64 [k] each. The two codes around zero have the ends zero, because the only other
        values there are denormals below 1e-40.
    """
    lower, upper = _all_bounds()
    return lower[codes].astype(np.float64), upper[codes].astype(np.float64)


# The same table of 65,536 codes for every tensor; computing it takes 0.5 ms.
@cache
def _all_bounds() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the ends for every code, which float32 represents exactly; those of infinities and NaN are meaningless."""
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
    """Return entries of ascending codes in ascending order of the values: negative codes count down."""
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
"""Codes that occurred, ascending, [k], and the number of values of each, [k]."""


@dataclass(frozen=True, eq=False)
class ChannelStats:
    """Statistics of each channel of a tensor; merged by addition.

    Attributes:
        minima: Smallest finite value of each channel, float32 [c].
        maxima: Largest finite value of each channel, float32 [c].
        runners_up: What each channel reaches in the sample in which it is second strongest, float32 [c]: a magnitude;
            0 with one sample. It says how far new samples may go.
        squares: Sum of the squares of the finite values, float64 [c].
        nonzero: Number of values other than 0, int64 [c].
    """

    minima: FloatArray = field(repr=False)
    maxima: FloatArray = field(repr=False)
    runners_up: FloatArray = field(repr=False)
    squares: npt.NDArray[np.float64] = field(repr=False)
    nonzero: npt.NDArray[np.int64] = field(repr=False)

    @property
    def peaks(self) -> FloatArray:
        """Largest magnitude of the finite values of each channel, float32 [c]; 0 without any."""
        return np.maximum(np.maximum(self.maxima, -self.minima), np.float32(0.0))

    def merge(self, added_stats: "ChannelStats") -> "ChannelStats":
        """Return the statistics of both sets of values together."""
        if self.minima.shape != added_stats.minima.shape:
            raise InternalError(
                "statistics of channels can be merged only for equal numbers of channels, got "
                f"{len(self.minima)} and {len(added_stats.minima)}; in ChannelStats.merge"
            )
        return ChannelStats(
            np.minimum(self.minima, added_stats.minima),
            np.maximum(self.maxima, added_stats.maxima),
            np.maximum(np.minimum(self.peaks, added_stats.peaks), np.maximum(self.runners_up, added_stats.runners_up)),
            self.squares + added_stats.squares,
            self.nonzero + added_stats.nonzero,
        )


@dataclass(frozen=True, eq=False)
class TensorStats:
    """Statistics of one tensor that serve every calibration method; bounded in size, merged by addition.

    NaN and infinities are only counted; nothing else depends on them.

    Attributes:
        minimum: Smallest finite value, exact; plus infinity if there is none.
        maximum: Largest finite value, exact; minus infinity if there is none.
        count: Number of values, including NaN and infinities.
        nan_count: Number of NaN values.
        inf_count: Number of infinite values.
        batch_minima: Smallest finite value of each sample, float32 [n].
        batch_maxima: Largest finite value of each sample, float32 [n].
        codes: Codes that occurred, ascending, uint16 [k]; a code is the upper half of a float32's bits.
        counts: Number of finite values of each code, int64 [k].
        channels: Statistics of each channel; None unless requested.
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
    channels: ChannelStats | None = field(default=None, repr=False)

    @property
    def finite_count(self) -> int:
        """Number of values that are neither NaN nor infinite."""
        return self.count - self.nan_count - self.inf_count

    def merge(self, added_stats: "TensorStats") -> "TensorStats":
        """Return the statistics of both sets of values together.

        Associative, and commutative except for the order of the batches. Statistics of channels remain only if both
        have them.
        """
        codes, counts = add_histograms([(self.codes, self.counts), (added_stats.codes, added_stats.counts)])
        return TensorStats(
            minimum=min(self.minimum, added_stats.minimum),
            maximum=max(self.maximum, added_stats.maximum),
            count=self.count + added_stats.count,
            nan_count=self.nan_count + added_stats.nan_count,
            inf_count=self.inf_count + added_stats.inf_count,
            batch_minima=np.concatenate([self.batch_minima, added_stats.batch_minima]),
            batch_maxima=np.concatenate([self.batch_maxima, added_stats.batch_maxima]),
            codes=codes,
            counts=counts,
            channels=None
            if self.channels is None or added_stats.channels is None
            else self.channels.merge(added_stats.channels),
        )

    def distribution(self) -> Distribution:
        """Return the finite values as mass in ascending intervals, clipped to ``[minimum, maximum]``."""
        return histogram_distribution(self.codes, self.counts, self.minimum, self.maximum)


def add_histograms(histograms: list[Histogram]) -> Histogram:
    """Return the sum of sparse histograms, codes ascending."""
    codes, position = np.unique(np.concatenate([codes for codes, _ in histograms]), return_inverse=True)
    counts = np.zeros(len(codes), np.int64)
    np.add.at(counts, position, np.concatenate([counts for _, counts in histograms]))
    return codes, counts


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
    # Neither tail alone may have more mass than is cut off in total, so t is at least as large as either quantile.
    right = quantile(stats, fraction)
    if right >= -stats.minimum:
        return max(right, 0.0)  # there is no value left of -t
    bound = abs(max(right, -quantile(stats, 1.0 - fraction), 0.0))  # abs: minus zero has a code of its own
    # The bound may lie on the edge of a bin, or have been rounded across it, so start one bin lower.
    nearest = max(int(np.float32(bound).view(np.uint32)) // 2**16 - 1, 0)
    return _in_tails(stats, nearest, fraction * float(stats.counts.sum()))


def _in_tails(stats: TensorStats, nearest: int, mass: float) -> float:
    """Return the smallest ``t`` with at least this mass in ``[-t, t]``, given a code that is not larger."""
    first_negative = int(stats.codes.searchsorted(NEGATIVE))
    right = slice(int(stats.codes.searchsorted(nearest)), first_negative)
    negative = slice(int(stats.codes.searchsorted(NEGATIVE + nearest)), len(stats.codes))
    inner = float(stats.counts[: right.start].sum() + stats.counts[first_negative : negative.start].sum())
    if nearest and inner >= mass:
        # The left tail has exactly the mass that is cut off: the quantile is its end, and t is the next value inwards.
        return _in_tails(stats, 0, mass)
    magnitudes = np.concatenate([stats.codes[right], stats.codes[negative] - NEGATIVE])
    counts = np.concatenate([stats.counts[right], stats.counts[negative]])
    order = np.argsort(magnitudes, kind="stable")
    running = inner + np.cumsum(counts[order], dtype=np.float64)
    code = magnitudes[order[min(int(running.searchsorted(mass)), len(running) - 1)]]
    first, end = (int(magnitudes.searchsorted(code, side, sorter=order)) for side in ("left", "right"))
    sides = (stats.minimum, stats.maximum), (-stats.maximum, -stats.minimum)
    bins = [_bin(code, sides[int(index >= right.stop - right.start)], counts[index]) for index in order[first:end]]
    return _value_at(bins, mass - (float(running[first - 1]) if first else inner))


def _bin(code: np.uint16, extremes: tuple[float, float], count: np.int64) -> _Bin:
    """Return the bin of a code, or of a magnitude on one side of zero, within the extremes of the tensor."""
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


def variance(stats: TensorStats) -> float:
    """Return the variance of all finite values; those of a bin count as its middle."""
    distribution = stats.distribution()
    middle = (distribution.lower + distribution.upper) / 2
    mean = np.average(middle, weights=distribution.counts)
    return float(np.average((middle - mean) ** 2, weights=distribution.counts))


def mean_square(stats: TensorStats) -> float:
    """Return the mean square of all finite values; those of a bin count as its middle."""
    distribution = stats.distribution()
    middle = (distribution.lower + distribution.upper) / 2
    return float(distribution.counts @ (middle * middle) / max(distribution.total, 1.0))
