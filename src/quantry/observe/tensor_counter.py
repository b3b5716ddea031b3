"""Counts the values of one tensor as samples stream past."""

import math
import mmap
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quantry.numerics.histogram import Histogram, TensorStats, add_histograms
from quantry.numerics.scalar_function import TurningPoint
from quantry.observe.code_counting import CHUNK, code_counter, joined
from quantry.observe.derive import RootStats

FloatArray = npt.NDArray[np.float32]

CODES = 1 << 16
FIRST_NON_FINITE = 0x7F80
"""First code, without its sign, whose exponent says infinity or NaN."""

HISTOGRAM_LIMIT = (1 << 32) - 1
"""Values that a histogram of 32-bit counts can take before it must be emptied."""

FIRST_SEARCH = 1 << 14
"""Values among which the one nearest to a turning point is looked for first."""

_NOWHERE = (math.nan, math.nan)


class CountingSpace:
    """Memory for the counters of one pass: scratch that they share, one after the other, and their histograms."""

    def __init__(self) -> None:
        self.distances: FloatArray = np.empty(CHUNK, np.float32)

    def histogram(self) -> npt.NDArray[np.uint32]:
        """Return zeroed counts of all codes, [65536]."""
        # Memory straight from the system: pages on which no code falls, most of them, are never made.
        size = CODES * np.dtype(np.uint32).itemsize
        if sys.platform == "win32":
            return np.frombuffer(mmap.mmap(-1, size), np.uint32)
        return np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint32)


class TensorCounter:
    """Mutable statistics of one tensor; `freeze` gives the value that travels.

    Args:
        space: Scratch memory.
        turns: Turning points whose nearest values are wanted in each sample.
        channel_axis: Axis along which extrema of each channel are kept, or None.
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
        self._channels: tuple[FloatArray, FloatArray] | None = None

    @property
    def all_finite(self) -> bool:
        """Whether neither NaN nor infinity has been seen."""
        return self._nan_count == 0 and self._inf_count == 0

    def add(self, values: FloatArray) -> None:
        """Count one sample's values, of any shape, contiguous."""
        flat = values.reshape(-1)
        low, high = self._count_codes(flat)
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = self._finite_extrema(flat)
        self._count += flat.size
        self._minima.append(low)
        self._maxima.append(high)
        for turn, near in zip(self._turns, self._near, strict=True):
            inside = low < turn.position < high
            near.append(_nearest(flat, turn, self._space.distances) if inside else _NOWHERE)
        if self._channel_axis is not None:
            self._add_channels(values, self._channel_axis)

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
            channel_minima=None if self._channels is None else self._channels[0],
            channel_maxima=None if self._channels is None else self._channels[1],
        )

    def _count_codes(self, flat: FloatArray) -> tuple[float, float]:
        """Count the codes; return the extrema, not finite if any value is not."""
        extremes = math.inf, -math.inf
        for start in range(0, flat.size, HISTOGRAM_LIMIT):
            part = flat[start : start + HISTOGRAM_LIMIT]
            if self._until_full < part.size:
                self._empty_histogram()
            self._until_full -= part.size
            extremes = joined(extremes, code_counter()(part, self._histogram))
        return extremes

    def _all_counts(self) -> Histogram:
        codes = np.flatnonzero(self._histogram)
        newer = codes.astype(np.uint16), self._histogram[codes].astype(np.int64)
        return newer if self._older is None else add_histograms([self._older, newer])

    def _empty_histogram(self) -> None:
        """Move the counts elsewhere before one could exceed its 32 bits."""
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

    def _add_channels(self, values: FloatArray, axis: int) -> None:
        rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        finite = np.isfinite(rows)
        low = np.min(rows, axis=1, initial=np.inf, where=finite)
        high = np.max(rows, axis=1, initial=-np.inf, where=finite)
        if self._channels is not None:
            low, high = np.minimum(low, self._channels[0]), np.maximum(high, self._channels[1])
        self._channels = low, high


def _nearest(flat: FloatArray, turn: TurningPoint, space: FloatArray) -> tuple[float, float]:
    """Return the values nearest to a turning point, at or below and at or above it; NaN where there is none.

    Stops early at a value so near that the function has its extreme there to float32 rounding. In a large tensor there
    nearly always is one among the first, so the search begins with a few values and goes on with more at a time.
    """
    position = np.float32(turn.position)
    left, right = -math.inf, math.inf
    start, length = 0, FIRST_SEARCH
    while start < flat.size and right > turn.tolerance and -left > turn.tolerance:
        distance = np.subtract(flat[start : start + length], position, out=space[: min(length, flat.size - start)])
        # Read as unsigned integers, the smallest of all is the positive float nearest to zero; read as signed ones, it
        # is the negative float nearest to zero.
        above = np.minimum.reduce(distance.view(np.uint32)).view(np.float32)
        below = np.minimum.reduce(distance.view(np.int32)).view(np.float32)
        right = right if np.signbit(above) else min(right, float(above))
        left = max(left, float(below)) if np.signbit(below) else left
        start, length = start + length, min(2 * length, CHUNK)
    return (
        float(position + np.float32(left)) if left > -math.inf else math.nan,
        float(position + np.float32(right)) if right < math.inf else math.nan,
    )
