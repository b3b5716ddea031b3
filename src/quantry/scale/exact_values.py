"""The values of a constant, all of them, as one group or channel by channel."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.scale.error import mean_clipping, mean_error
from quantry.scale.grid import Grid
from quantry.scale.moments import Moments
from quantry.scale.range import Range

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]

_BLOCK = 1 << 16
"""Number of values worked on at a time, so that the temporaries of the error stay in the processor's cache."""


class ExactValues:
    """`Observed` over the values themselves: one group, or one for each index along an axis.

    One group is sorted once and then answers as point masses do, so that a further candidate costs next to nothing;
    channels are too short for that to pay and are quantized for each candidate, many at a time.
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
    def _moments(self) -> Moments:
        values, counts = np.unique(self._values, return_counts=True)
        points = values.astype(np.float64)
        return Moments(points, points, counts.astype(np.float64))

    def extrema(self) -> Range:
        """Return smallest and largest value of each group, [C]."""
        others = tuple(axis for axis in range(self._values.ndim) if axis != self._axis)
        low, high = self._values.min(axis=others), self._values.max(axis=others)
        return Range(np.atleast_1d(low), np.atleast_1d(high))

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
        if self._axis is None:
            return mean_error(self._moments, scale[0], zero_point[0], grid, power)[None]
        return np.concatenate(
            [
                _block_error(self._rows[part], scale[part], zero_point[part], grid, power)
                for part in _blocks(len(self._rows), self._rows.shape[1])
            ]
        )

    def clipping(self, low: Floats, high: Floats) -> Floats:
        """Return the mean squared distance of the values outside an interval from it, [C, M]."""
        if self._axis is None:
            return mean_clipping(self._moments, low[0], high[0])[None]
        return np.concatenate(
            [
                _block_clipping(self._rows[part], low[part], high[part])
                for part in _blocks(len(self._rows), self._rows.shape[1])
            ]
        )


def _blocks(rows: int, length: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(length, 1))
    return (slice(start, start + step) for start in range(0, rows, step))


def _block_error(rows: Values, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
    """Return mean errors, [C, M]; in units of a step they need no more digits than float32 has."""
    errors = np.empty(scale.shape)
    for candidate in range(scale.shape[1]):
        step = scale[:, candidate, None].astype(np.float32)
        low, high = ((end - zero_point[:, candidate, None]).astype(np.float32) for end in (grid.lowest, grid.highest))
        position = rows / step
        distance = np.rint(position)
        np.maximum(distance, low, out=distance)
        np.minimum(distance, high, out=distance)
        np.subtract(distance, position, out=distance)
        np.abs(distance, out=distance) if power == 1 else np.square(distance, out=distance)
        errors[:, candidate] = distance.mean(axis=1) * step[:, 0].astype(np.float64) ** power
    return errors


def _block_clipping(rows: Values, low: Floats, high: Floats) -> Floats:
    """Return mean squared distances, [C, M], rounded down a little so that they stay a lower bound of the error."""
    pairs = zip(low.T.astype(np.float32), high.T.astype(np.float32), strict=True)
    outside = [np.square(rows - np.clip(rows, start[:, None], end[:, None])).mean(axis=1) for start, end in pairs]
    return np.stack(outside, axis=1).astype(np.float64) * (1 - 1e-5)
