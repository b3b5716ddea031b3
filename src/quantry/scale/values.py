"""The values of a tensor as calibration methods see them.

`Observed` is the interface that every calibration method is written against. It has three implementations:

================  =====================================================================================================
`BinnedValues`    an activation, counted in a histogram by the observe stage
`ResponseValues`  the same, with errors measured after the elementwise functions that read the activation
`ExactValues`     all values of a constant, as one group or per channel
================  =====================================================================================================
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantry.numerics.error import Moments, mean_clipping, mean_error
from quantry.numerics.grid import Grid, Range
from quantry.numerics.histogram import TensorStats, magnitude_quantile, quantile
from quantry.numerics.rounding import round_to_levels
from quantry.numerics.scalar_function import ScalarFunction
from quantry.recipe import DataType

Floats = npt.NDArray[np.float64]


class Observed(Protocol):
    """Finite values of one tensor, in C groups that each get a range: its channels, or the whole tensor (C = 1).

    A method written against this interface works for activations and constants, per tensor and per channel. Nothing
    here changes the values, and repeated calls return the same result.
    """

    def extrema(self) -> Range:
        """Return smallest and largest value of each group, exact."""
        ...

    def batch_extrema(self) -> Range:
        """Return smallest and largest value of each group and batch, [C, batches], oldest batch first."""
        ...

    def quantile(self, fraction: float) -> Floats:
        """Return for each group the smallest value with at least this fraction of the values at or below it, [C].

        Args:
            fraction: In [0, 1].
        """
        ...

    def magnitude_quantile(self, fraction: float) -> Floats:
        """Return for each group the smallest ``t`` for which at least this fraction has ``|x| <= t``, [C].

        Args:
            fraction: In [0, 1].
        """
        ...

    def histogram(self, bins: int) -> npt.NDArray[np.int64]:
        """Return counts in equal bins over ``[-max|x|, max|x|]`` of each group, [C, bins].

        Args:
            bins: Number of bins.
        """
        ...

    def error(self, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
        """Return the mean of ``|x - quantized x|**power`` of each group for each candidate, [C, M].

        Args:
            scale: Candidate scales, [C, M].
            zero_point: Candidate zero points, [C, M].
            grid: The integers in use; values are clipped to the ends.
            power: 1 for the absolute, 2 for the squared error.
        """
        ...

    def clipping(self, low: Floats, high: Floats) -> Floats:
        """Return the mean squared distance of the values outside an interval from it, [C, M].

        Args:
            low: Lower ends, [C, M].
            high: Upper ends, [C, M].
        """
        ...


class BinnedValues:
    """`Observed` over the statistics of one tensor: exact extremes, and mass spread evenly inside narrow bins."""

    def __init__(self, stats: TensorStats) -> None:
        self._stats = stats

    @cached_property
    def _moments(self) -> Moments:
        distribution = self._stats.distribution()
        return Moments(distribution.lower, distribution.upper, distribution.counts)

    def extrema(self) -> Range:
        """Return smallest and largest value, [1]."""
        return Range(np.array([self._stats.minimum]), np.array([self._stats.maximum]))

    def batch_extrema(self) -> Range:
        """Return smallest and largest value of each batch, [1, batches]."""
        minima, maxima = self._stats.batch_minima, self._stats.batch_maxima
        return Range(minima[None].astype(np.float64), maxima[None].astype(np.float64))

    def quantile(self, fraction: float) -> Floats:
        """Return the smallest value with at least this fraction at or below it, [1]."""
        return np.array([quantile(self._stats, fraction)])

    def magnitude_quantile(self, fraction: float) -> Floats:
        """Return the smallest ``t`` with at least this fraction in ``[-t, t]``, [1]."""
        return np.array([magnitude_quantile(self._stats, fraction)])

    def histogram(self, bins: int) -> npt.NDArray[np.int64]:
        """Return counts in equal bins over ``[-max|x|, max|x|]``, [1, bins]."""
        largest = self.extrema().magnitude
        # A value on an edge belongs to the bin to its right, as in `numpy.histogram`; zero is such a value.
        inner = np.nextafter(np.linspace(-largest[0], largest[0], bins + 1)[1:-1], -np.inf)
        mass = self._moments.between(np.concatenate([[-np.inf], inner, [np.inf]])).mass
        # Rounding the running sum instead of each bin preserves the total.
        return np.diff(np.rint(np.cumsum(mass)), prepend=0.0).astype(np.int64)[None]

    def error(self, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
        """Return the mean error of each candidate, [1, M]."""
        return mean_error(self._moments, scale[0], zero_point[0], grid, power)[None]

    def clipping(self, low: Floats, high: Floats) -> Floats:
        """Return the mean squared distance of the values outside an interval from it, [1, M]."""
        return mean_clipping(self._moments, low[0], high[0])[None]


Values = npt.NDArray[np.float32]

_BLOCK = 1 << 15
"""Number of values processed at a time, so that temporary arrays stay in the processor's cache."""


class ExactValues:
    """`Observed` for the values themselves: one group, or one per index along an axis.

    Candidates are compared by quantizing the values with each of them, block by block, in the runtime's arithmetic.
    """

    def __init__(self, values: Values, axis: int | None = None) -> None:
        """Store the values.

        Args:
            values: Finite values of any shape, at least one per group.
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
        reduced = tuple(axis for axis in range(self._values.ndim) if axis != self._axis)
        low, high = self._values.min(axis=reduced), self._values.max(axis=reduced)
        return Range(np.atleast_1d(low), np.atleast_1d(high))

    def extrema(self) -> Range:
        """Return smallest and largest value of each group, [C]."""
        return self._extrema

    def batch_extrema(self) -> Range:
        """Return smallest and largest value of each group, [C, 1]: constants are one batch."""
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
        # The error of a candidate that is much too fine overflows to infinity, so it is never selected.
        with np.errstate(over="ignore"):
            for groups, values in self._blocks():
                for candidate in range(scale.shape[1]):
                    at = (groups, slice(candidate, candidate + 1))
                    sums[at] += _block_error(values, step[at], (grid.dtype, low[at], high[at]), power)
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
        # Slightly reduced, so that with rounding errors it is still a lower bound of the quantization error.
        return np.asarray(sums / self._rows.shape[1] * unit**2 * (1 - 1e-5))

    def _blocks(self) -> Iterator[tuple[slice, Values]]:
        """Yield groups and some of their values, [groups, n]: many short groups at a time, or parts of a long one."""
        count, length = self._rows.shape
        step = max(1, _BLOCK // length)
        for start in range(0, count, step):
            groups = slice(start, start + step)
            for first in range(0, length, _BLOCK):
                yield groups, self._rows[groups, first : first + _BLOCK]


def _block_error(values: Values, step: Values, levels: tuple[DataType, Values, Values], power: int) -> Floats:
    """Return the sum of errors in units of a step, [C, 1]; float32 is precise enough for these."""
    position = values / step
    # Everything happens in one array, because this is the inner loop of the search for the best range.
    distance = round_to_levels(position, *levels, out=np.empty_like(position))
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


_FINE, _COARSE = 2**14, 2**11
"""Fractions of the observed range: values closer than the finer one are merged, bins wider than the other are cut."""

_MOST_PIECES = 8


class ResponseValues(BinnedValues):
    """`BinnedValues` with the error of functions of the values: ``mean (f(x) - f(quantized x))**power``.

    Several functions are weighted by the fraction of their own variance that is lost. All are divided by their largest
    slope, so that no error is larger than that of the values themselves, as the searches for the best range assume.
    """

    def __init__(self, stats: TensorStats, functions: Sequence[ScalarFunction]) -> None:
        super().__init__(stats)
        self._functions = tuple(functions)

    @cached_property
    def _points(self) -> tuple[Floats, Floats]:
        """Values and their share of the total, ascending."""
        moments = self._moments
        span = float(moments.upper[-1] - moments.lower[0]) or 1.0
        width = moments.upper - moments.lower
        pieces = np.clip(np.ceil(width * (_COARSE / span)), 1, _MOST_PIECES).astype(np.int64)
        owner = np.repeat(np.arange(len(pieces)), pieces)
        fraction = (np.arange(0.5, len(owner)) - (np.cumsum(pieces) - pieces)[owner]) / pieces[owner]
        values = moments.lower[owner] + width[owner] * fraction
        mass = (moments.counts / pieces)[owner] / moments.total
        cell = np.floor((values - moments.lower[0]) * (_FINE / span)).astype(np.int64)
        _, group = np.unique(cell, return_inverse=True)
        together = np.bincount(group, mass).astype(np.float64)
        return np.bincount(group, mass * values) / together, together

    @cached_property
    def _weights(self) -> list[float]:
        """The factor of each function's difference."""
        values, mass = self._points
        weights = []
        for function in self._functions:
            image = function.evaluate(values)
            slope = float(np.max(np.abs(np.diff(image)) / np.diff(values), initial=0.0))
            spread = 1.0
            if len(self._functions) > 1:
                spread = float(np.sqrt(mass @ (image - mass @ image) ** 2)) or 1.0
            weights.append(1.0 / (max(slope, 1.0) * spread))
        return weights if len(weights) == 1 else [weight / max(weights) / len(weights) for weight in weights]

    @cached_property
    def _images(self) -> list[Floats]:
        return [
            function.evaluate(self._points[0]) * weight
            for function, weight in zip(self._functions, self._weights, strict=True)
        ]

    def error(self, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
        """Return the mean error of each candidate after the functions, [1, M]."""
        values, mass = self._points
        # With fewer levels than values, it is cheaper to evaluate the functions at the levels.
        by_levels = grid.dtype.is_integer and grid.highest - grid.lowest < len(values)
        errors = np.zeros((1, scale.shape[1]))
        for column, (step, zero) in enumerate(zip(scale[0], zero_point[0], strict=True)):
            level = round_to_levels(values / step, grid.dtype, grid.lowest - zero, grid.highest - zero) + zero
            if not by_levels:
                errors[0, column] = self._distance((level - zero) * step, power)
                continue
            index = (level - grid.lowest).astype(np.intp)
            levels = (np.arange(grid.lowest, grid.highest + 1) - zero) * step
            for function, weight, image in zip(self._functions, self._weights, self._images, strict=True):
                difference = (function.evaluate(levels) * weight)[index] - image
                errors[0, column] += mass @ (np.abs(difference) if power == 1 else difference * difference)
        return errors

    def clipping(self, low: Floats, high: Floats) -> Floats:
        """Return the mean squared difference that clipping alone causes after the functions, [1, M]."""
        values = self._points[0]
        pairs = zip(low[0], high[0], strict=True)
        return np.array([[self._distance(np.clip(values, start, end), 2) for start, end in pairs]])

    def _distance(self, moved: Floats, power: int) -> float:
        mass = self._points[1]
        return sum(
            float(mass @ np.abs(function.evaluate(moved) * weight - image) ** power)
            for function, weight, image in zip(self._functions, self._weights, self._images, strict=True)
        )
