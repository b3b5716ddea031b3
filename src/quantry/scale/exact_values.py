"""The values of a constant, all of them, as one group or channel by channel."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.scale.grid import Grid
from quantry.scale.range import Range

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]

_BLOCK = 1 << 15
"""Number of values worked on at a time, so that the temporaries of the error stay in the processor's cache."""


class ExactValues:
    """`Observed` over the values themselves: one group, or one for each index along an axis.

    Candidates are compared by quantizing the values with each, block by block, in the arithmetic of the runtime.
    """

    def __init__(self, values: Values, axis: int | None = None) -> None:
        """Remember the values.

        Args:
            values: Finite values of any shape, at least one for each group.
            axis: Channel axis, or None for one group.
        """
        self._values = values
        self._axis = axis

    @cached_property
    def _rows(self) -> Values:
        """The values of each group, [C, n]."""
        if self._axis is None:
            return self._values.reshape(1, -1)
        return np.moveaxis(self._values, self._axis, 0).reshape(self._values.shape[self._axis], -1)

    @cached_property
    def _extrema(self) -> Range:
        others = tuple(axis for axis in range(self._values.ndim) if axis != self._axis)
        low, high = self._values.min(axis=others), self._values.max(axis=others)
        return Range(np.atleast_1d(low), np.atleast_1d(high))

    def extrema(self) -> Range:
        """Return smallest and largest value of each group, [C]."""
        return self._extrema

    def batch_extrema(self) -> Range:
        """Return smallest and largest value of each group, [C, 1]: constants come in one batch."""
        extrema = self.extrema()
        return Range(extrema.low[:, None], extrema.high[:, None])

    def quantile(self, fraction: float) -> Floats:
        """Return for each group the smallest value with at least this fraction at or below it, [C]."""
        return np.quantile(self._rows, fraction, axis=1, method="inverted_cdf").astype(np.float64)

    def magnitude_quantile(self, fraction: float) -> Floats:
        """Return for each group the smallest ``t`` with at least this fraction in ``[-t, t]``, [C]."""
        return np.quantile(np.abs(self._rows), fraction, axis=1, method="inverted_cdf").astype(np.float64)

    def histogram(self, bins: int) -> npt.NDArray[np.int64]:
        """Return counts in equal bins over ``[-max|x|, max|x|]`` of each group, [C, bins]."""
        largest = self.extrema().magnitude[:, None]
        unit = np.divide(self._rows, largest, out=np.zeros(self._rows.shape), where=largest > 0)
        bin_ = np.minimum(((unit + 1) * (bins / 2)).astype(np.int64), bins - 1)
        groups = len(self._rows)
        flat = bin_ + bins * np.arange(groups)[:, None]
        return np.bincount(flat.ravel(), minlength=groups * bins).reshape(groups, bins)

    def error(self, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
        """Return the mean error of each group for each candidate, [C, M]."""
        step = scale.astype(np.float32)
        low, high = ((end - zero_point).astype(np.float32) for end in (grid.lowest, grid.highest))
        sums = np.zeros(scale.shape)
        # A candidate so fine that its error overflows is infinitely bad, which is what it should be.
        with np.errstate(over="ignore"):
            for groups, values in self._blocks():
                for candidate in range(scale.shape[1]):
                    at = (groups, slice(candidate, candidate + 1))
                    sums[at] += _block_error(values, step[at], (low[at], high[at]), power)
        return np.asarray(sums / self._rows.shape[1] * step.astype(np.float64) ** power)

    def clipping(self, low: Floats, high: Floats) -> Floats:
        """Return the mean squared distance of the values outside an interval from it, [C, M]."""
        # In units of the largest value, so that no square overflows or vanishes in float32.
        largest = self.extrema().magnitude[:, None]
        unit = np.where(largest > 0, largest, 1.0)
        ends = [(side / unit).astype(np.float32) for side in (low, high)]
        sums = np.zeros(low.shape)
        for groups, values in self._blocks():
            relative = np.divide(values, unit[groups], dtype=np.float32)
            for candidate in range(low.shape[1]):
                at = (groups, slice(candidate, candidate + 1))
                sums[at] += _block_clipping(relative, ends[0][at], ends[1][at])
        # A little less, so that rounding never makes it more than the error that it is a lower bound of.
        return np.asarray(sums / self._rows.shape[1] * unit**2 * (1 - 1e-5))

    def _blocks(self) -> Iterator[tuple[slice, Values]]:
        """Yield groups and some of their values, [groups, n]: many short groups at a time, or parts of a long one."""
        count, length = self._rows.shape
        step = max(1, _BLOCK // length)
        for start in range(0, count, step):
            groups = slice(start, start + step)
            for first in range(0, length, _BLOCK):
                yield groups, self._rows[groups, first : first + _BLOCK]


def _block_error(values: Values, step: Values, ends: tuple[Values, Values], power: int) -> Floats:
    """Return the sum of errors in units of a step, [C, 1]; these need no more digits than float32 has."""
    position = values / step
    distance = np.rint(position)
    np.maximum(distance, ends[0], out=distance)
    np.minimum(distance, ends[1], out=distance)
    np.subtract(distance, position, out=distance)
    np.abs(distance, out=distance) if power == 1 else np.square(distance, out=distance)
    return np.asarray(distance.sum(axis=1, keepdims=True), np.float64)


def _block_clipping(values: Values, low: Values, high: Values) -> Floats:
    """Return the sum of squared distances from an interval, [C, 1]."""
    outside = np.maximum(values, low)
    np.minimum(outside, high, out=outside)
    np.subtract(values, outside, out=outside)
    np.square(outside, out=outside)
    return np.asarray(outside.sum(axis=1, keepdims=True), np.float64)
