"""The values of an activation, judged by what an elementwise function behind it makes of their errors."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.observe import TensorStats
from quantry.observe.scalar_function import ScalarFunction
from quantry.scale.binned_values import BinnedValues
from quantry.scale.grid import Grid

Floats = npt.NDArray[np.float64]

_FINE, _COARSE = 2**14, 2**11
"""Parts of the observed range: values nearer than the finer one are one point, bins wider than the other are cut."""

_MOST_PIECES = 8


class BehindValues(BinnedValues):
    """`BinnedValues` whose error is that of functions of the values: ``mean (f(x) - f(quantized x))**power``.

    Several functions count by the share of their own variance that is lost. All are divided by their largest slope, so
    that no error is larger than that of the values themselves, as searches for the best range expect.
    """

    def __init__(self, stats: TensorStats, functions: Sequence[ScalarFunction]) -> None:
        super().__init__(stats)
        self._functions = tuple(functions)

    @cached_property
    def _points(self) -> tuple[Floats, Floats]:
        """Values and their share of the whole, ascending."""
        moments = self._moments
        span = float(moments.upper[-1] - moments.lower[0]) or 1.0
        width = moments.upper - moments.lower
        pieces = np.clip(np.ceil(width * (_COARSE / span)), 1, _MOST_PIECES).astype(np.int64)
        owner = np.repeat(np.arange(len(pieces)), pieces)
        place = (np.arange(0.5, len(owner)) - (np.cumsum(pieces) - pieces)[owner]) / pieces[owner]
        values = moments.lower[owner] + width[owner] * place
        mass = (moments.counts / pieces)[owner] / moments.total
        cell = np.floor((values - moments.lower[0]) * (_FINE / span)).astype(np.int64)
        _, group = np.unique(cell, return_inverse=True)
        together = np.bincount(group, mass).astype(np.float64)
        return np.bincount(group, mass * values) / together, together

    @cached_property
    def _weights(self) -> list[float]:
        """What the difference of each function is multiplied by."""
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
        """Return the mean error of each candidate behind the functions, [1, M]."""
        values, mass = self._points
        # Where there are fewer levels than values, the functions are evaluated at the levels.
        by_levels = grid.highest - grid.lowest < len(values)
        errors = np.zeros((1, scale.shape[1]))
        for column, (step, zero) in enumerate(zip(scale[0], zero_point[0], strict=True)):
            level = np.clip(np.rint(values / step) + zero, grid.lowest, grid.highest)
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
        """Return the mean squared difference that clipping alone makes behind the functions, [1, M]."""
        values = self._points[0]
        pairs = zip(low[0], high[0], strict=True)
        return np.array([[self._distance(np.clip(values, start, end), 2) for start, end in pairs]])

    def _distance(self, moved: Floats, power: int) -> float:
        mass = self._points[1]
        return sum(
            float(mass @ np.abs(function.evaluate(moved) * weight - image) ** power)
            for function, weight, image in zip(self._functions, self._weights, self._images, strict=True)
        )
