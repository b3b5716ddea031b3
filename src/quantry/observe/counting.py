"""Count the values of one tensor while samples stream past: histogram, extremes, and values near turning points.

The histogram counts *codes*: the upper 16 bits of a float32, which are sign, exponent and 7 bits of the mantissa. The
compiled kernel and NumPy return the same counts.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from quantry.numerics import kernels
from quantry.numerics.histogram import ChannelStats, Histogram, TensorStats, add_histograms
from quantry.numerics.scalar_function import TurningPoint
from quantry.observe.derive import RootStats
from quantry.operating_system import zeroed_memory

FloatArray = npt.NDArray[np.float32]
Counts = npt.NDArray[np.uint32]
Extremes = tuple[float, float]

CHUNK = 1 << 17
"""Values that NumPy counts at a time. They and their codes fit into the second-level cache."""

_ONE = np.uint32(1)


def code_counter() -> Callable[[FloatArray, Counts], Extremes]:
    """Return the fastest implementation of `count_codes`; all give the same results."""
    compiled = kernels.loaded()
    return count_codes if compiled is None else functools.partial(_count_compiled, compiled)


def count_codes(flat: FloatArray, histogram: Counts) -> Extremes:
    """Add the values' codes, the upper halves of their bits, to a histogram.

    Args:
        flat: Values, contiguous.
        histogram: Counts of all codes, [65536]; the caller makes sure that none overflows.

    Returns:
        Smallest and largest value, zeros without sign; NaN and NaN if any value is not finite.
    """
    low, high = math.inf, -math.inf
    codes = np.empty(min(CHUNK, flat.size), np.intp)
    # Little-endian: the second half of each float is its upper one.
    upper_halves = flat.view(np.uint16)[1::2]
    for start in range(0, flat.size, CHUNK):
        chunk = flat[start : start + CHUNK]
        # The fast passes come first: they bring the chunk into the cache for the slow one.
        lowest, highest = float(np.minimum.reduce(chunk)), float(np.maximum.reduce(chunk))
        low, high = joined((low, high), (lowest, highest))
        np.copyto(codes[: chunk.size], upper_halves[start : start + CHUNK])
        np.add.at(histogram, codes[: chunk.size], _ONE)
    return low + 0.0, high + 0.0


def joined(first: Extremes, second: Extremes) -> Extremes:
    """Return the extremes of two sets of values together; NaN if any value is not finite."""
    low, high = min(first[0], second[0]), max(first[1], second[1])
    return (low, high) if all(map(math.isfinite, second)) and not math.isnan(first[0]) else (math.nan, math.nan)


def _count_compiled(compiled: kernels.Kernels, flat: FloatArray, histogram: Counts) -> Extremes:
    if flat.size == 0:
        return math.inf, -math.inf
    ranks = np.array(compiled.count_codes(flat, histogram), np.int32)
    # The kernel orders floats as integers. Mapping bits to these ranks is its own inverse.
    bits = np.where(ranks < 0, ranks ^ 0x7FFFFFFF, ranks).astype(np.int32)
    low, high = bits.view(np.float32).tolist()
    return joined((low + 0.0, high + 0.0), (low + 0.0, high + 0.0))


CODES = 1 << 16
FIRST_NON_FINITE = 0x7F80
"""First code, without its sign, whose exponent means infinity or NaN."""

HISTOGRAM_LIMIT = (1 << 32) - 1
"""Number of values after which a 32-bit count could overflow, so that the histogram must be emptied."""

FIRST_SEARCH = 1 << 14
"""Number of values that are searched first for the one nearest to a turning point."""

_NOWHERE = (math.nan, math.nan)

# Number of set bits in each byte.
_SET_BITS = np.array([byte.bit_count() for byte in range(256)], np.uint8)


class CountingSpace:
    """Memory for the counters of one pass: scratch space that they share, and their histograms."""

    def __init__(self) -> None:
        self.distances: FloatArray = np.empty(CHUNK, np.float32)

    def histogram(self) -> npt.NDArray[np.uint32]:
        """Return zeroed counts of all codes, [65536]."""
        # Pages without any counted code, which are most, are never allocated.
        return np.frombuffer(zeroed_memory(CODES * np.dtype(np.uint32).itemsize), np.uint32)


class TensorCounter:
    """Mutable statistics of one tensor; `freeze` returns them as a value.

    Args:
        space: Scratch memory.
        turns: Turning points for which the nearest values of each sample are recorded.
        channel_axis: Axis for statistics of each channel, or None.
    """

    def __init__(
        self, space: CountingSpace, turns: Sequence[TurningPoint] = (), channel_axis: int | None = None
    ) -> None:
        self._space = space
        self._turns = tuple(turns)
        self._channel_axis = channel_axis
        self._histogram = space.histogram()
        self._until_full = HISTOGRAM_LIMIT
        self._older: Histogram | None = None
        self._count = 0
        self._nan_count = 0
        self._inf_count = 0
        self._minima: list[float] = []
        self._maxima: list[float] = []
        self._near: list[list[tuple[float, float]]] = [[] for _ in self._turns]
        self._channels: ChannelStats | None = None

    @property
    def all_finite(self) -> bool:
        """Whether neither NaN nor infinity has been seen."""
        return self._nan_count == 0 and self._inf_count == 0

    def add(self, values: FloatArray) -> None:
        """Count the values of one sample, of any shape, contiguous."""
        flat = values.reshape(-1)
        low, high = self._count_codes(flat)
        is_finite = math.isfinite(low) and math.isfinite(high)
        if not is_finite:
            low, high = self._finite_extrema(flat)
        self._count += flat.size
        self._minima.append(low)
        self._maxima.append(high)
        for turn, near in zip(self._turns, self._near, strict=True):
            inside = low < turn.position < high
            near.append(_nearest(flat, turn, self._space.distances) if inside else _NOWHERE)
        if self._channel_axis is not None:
            self._add_channels(values, self._channel_axis, is_finite=is_finite)

    def freeze(self) -> RootStats:
        """Return what has been counted."""
        near = [np.array(pairs, np.float32).reshape(-1, 2) for pairs in self._near]
        by_position = {turn.position: (p[:, 0], p[:, 1]) for turn, p in zip(self._turns, near, strict=True)}
        return RootStats(self._stats(), by_position)

    def _stats(self) -> TensorStats:
        codes, counts = self._all_counts()
        finite = (codes & 0x7FFF) < FIRST_NON_FINITE
        minima, maxima = np.array(self._minima, np.float32), np.array(self._maxima, np.float32)
        return TensorStats(
            minimum=float(minima.min(initial=np.inf)),
            maximum=float(maxima.max(initial=-np.inf)),
            count=self._count,
            nan_count=self._nan_count,
            inf_count=self._inf_count,
            batch_minima=minima,
            batch_maxima=maxima,
            codes=codes[finite],
            counts=counts[finite],
            channels=self._channels,
        )

    def _count_codes(self, flat: FloatArray) -> tuple[float, float]:
        """Count the codes; return the extrema, which are not finite if any value is not."""
        extremes = math.inf, -math.inf
        for start in range(0, flat.size, HISTOGRAM_LIMIT):
            block = flat[start : start + HISTOGRAM_LIMIT]
            if self._until_full < block.size:
                self._empty_histogram()
            self._until_full -= block.size
            extremes = joined(extremes, code_counter()(block, self._histogram))
        return extremes

    def _all_counts(self) -> Histogram:
        codes = np.flatnonzero(self._histogram)
        newer = codes.astype(np.uint16), self._histogram[codes].astype(np.int64)
        return newer if self._older is None else add_histograms([self._older, newer])

    def _empty_histogram(self) -> None:
        """Move the counts elsewhere before one could overflow its 32 bits."""
        self._older = self._all_counts()
        self._histogram[:] = 0
        self._until_full = HISTOGRAM_LIMIT

    def _finite_extrema(self, flat: FloatArray) -> tuple[float, float]:
        """Count NaN and infinities; return the extrema of the rest."""
        finite = flat[np.isfinite(flat)]
        nan_count = int(np.isnan(flat).sum())
        self._nan_count += nan_count
        self._inf_count += flat.size - finite.size - nan_count
        return float(finite.min(initial=np.inf)), float(finite.max(initial=-np.inf))

    def _add_channels(self, values: FloatArray, axis: int, *, is_finite: bool) -> None:
        rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        # Reductions with a mask take several times as long.
        finite = True if is_finite else np.isfinite(rows)
        stats = ChannelStats(
            rows.min(axis=1, initial=np.inf, where=finite),
            rows.max(axis=1, initial=-np.inf, where=finite),
            np.zeros(len(rows), np.float32),
            np.square(rows if is_finite else np.where(finite, rows, 0.0), dtype=np.float64).sum(axis=1),
            # Two to seven times as fast as count_nonzero along an axis, which converts the values first.
            _SET_BITS[np.packbits(rows != 0, axis=1)].sum(axis=1, dtype=np.int64),
        )
        self._channels = stats if self._channels is None else self._channels.merge(stats)


def _nearest(flat: FloatArray, turn: TurningPoint, space: FloatArray) -> tuple[float, float]:
    """Return the values nearest to a turning point, at or below and at or above it; NaN if there is none.

    Stops at a value so close that the function reaches its extreme there within float32 rounding. A large tensor nearly
    always has one among its first values, so the search starts with a few values and takes more at a time later.
    """
    position = np.float32(turn.position)
    below_zero, above_zero = -math.inf, math.inf
    start, length = 0, FIRST_SEARCH
    while start < flat.size and above_zero > turn.tolerance and -below_zero > turn.tolerance:
        distance = np.subtract(flat[start : start + length], position, out=space[: min(length, flat.size - start)])
        # As unsigned integers, the smallest is the positive float nearest to zero; as signed integers, the smallest is
        # the negative float nearest to zero.
        above = np.minimum.reduce(distance.view(np.uint32)).view(np.float32)
        below = np.minimum.reduce(distance.view(np.int32)).view(np.float32)
        above_zero = above_zero if np.signbit(above) else min(above_zero, float(above))
        below_zero = max(below_zero, float(below)) if np.signbit(below) else below_zero
        start, length = start + length, min(2 * length, CHUNK)
    return (
        float(position + np.float32(below_zero)) if below_zero > -math.inf else math.nan,
        float(position + np.float32(above_zero)) if above_zero < math.inf else math.nan,
    )
