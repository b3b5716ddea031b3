"""Mean quantization error of a distribution, in closed form.

The values are mass c spread evenly inside bins [a, b]. Up to a point t inside a bin there are

::

    f = (t - a) / (b - a)      mass c f,    first moment c f (a + t) / 2,    second moment c f (a**2 + a t + t**2) / 3

and between two points the difference of two running sums (`Moments`). With them the error is computed in one of two
exact ways, whichever is cheaper. By levels: values in the cell of level L are rounded to L, and

::

    sum of (x - L)**2 over a cell = M2 - 2 L M1 + L**2 M0          with the cell's moments M0, M1, M2

which costs one look-up per level. By bins: in units of a step the distance to the nearest integer is a sawtooth with
the integral G, and beyond the last level the error grows as a power,

::

    r = u - round(u)       p = 1:  G(u) = round(u) / 4 + r |r| / 2        p = 2:  G(u) = round(u) / 12 + r**3 / 3

which costs a few operations per bin. Values halfway between two levels have the same error at both, so it does not
matter how ties are rounded.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantry.numerics.grid import Grid
from quantry.numerics.rounding import round_and_clip

Floats = npt.NDArray[np.float64]


class Sums(NamedTuple):
    """Sums over the values in intervals, one entry for each interval.

    Attributes:
        mass: Number of values.
        first: Sum of the values.
        second: Sum of their squares.
    """

    mass: Floats
    first: Floats
    second: Floats


class Moments:
    """Running sums over binned values.

    Attributes:
        lower: Left ends of the bins, ascending, [k]; k is at least 1.
        upper: Right ends, [k]; equal to `lower` for a point mass. Bins do not overlap.
        counts: Mass of each bin, [k].
        total: Mass of all bins.
    """

    def __init__(self, lower: Floats, upper: Floats, counts: Floats) -> None:
        self.lower = lower
        self.upper = upper
        self.counts = counts
        self.total = float(counts.sum())

    @cached_property
    def _middle(self) -> int:
        return int(np.searchsorted(self.lower, 0.0))

    @cached_property
    def _parts(self) -> tuple[Floats, Floats, Floats]:
        return _segment(self.counts, self.lower, self.upper)

    @cached_property
    def _totals(self) -> list[float]:
        return [float(moment.sum()) for moment in self._parts]

    @cached_property
    def _running(self) -> list[Floats]:
        # Counting from the nearer end keeps the digits: far from zero the sums are those of the few values beyond.
        return [_from_both_ends(moment, self._middle) for moment in self._parts]

    @cached_property
    def _density(self) -> Floats:
        width = self.upper - self.lower
        # Point masses are never cut, so their density is not used and must only not divide by zero.
        return self.counts / np.where(width > 0, width, 1.0)

    def between(self, points: Floats) -> Sums:
        """Return the sums over the values between neighbouring points.

        A value equal to a point belongs to the interval left of it.

        Args:
            points: Ascending along the last axis, [..., n + 1]; infinities are allowed.

        Returns:
            Sums of shape [..., n].
        """
        index = np.searchsorted(self.upper, points, side="right")
        bins = np.minimum(index, len(self.upper) - 1)
        start = self.lower[bins]
        # Only points strictly inside a bin cut it; at other points the segment is empty.
        end = np.where((index < len(self.upper)) & (start < points), points, start)
        cut = _segment(self._density[bins] * (end - start), start, end)
        from_right = index > self._middle
        crosses = from_right[..., 1:] & ~from_right[..., :-1]
        return Sums(
            *(
                np.diff(running[index] + moment) + crosses * total
                for running, moment, total in zip(self._running, cut, self._totals, strict=True)
            )
        )


def _segment(mass: Floats, start: Floats, end: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the moments of a mass that is spread evenly from start to end."""
    return mass, mass * (start + end) / 2, mass * (start * start + start * end + end * end) / 3


def _from_both_ends(values: Floats, middle: int) -> Floats:
    """Return running sums before each part: from the left up to `middle`, minus those from the right beyond it."""
    from_left = np.concatenate([[0.0], np.cumsum(values[:middle])])
    right = np.cumsum(values[middle:][::-1])[::-1]
    return np.concatenate([from_left, -right[1:], [0.0]]) if len(right) else from_left


_NARROW = 1e-6
"""Bins narrower than this many steps are taken as points: the difference of integrals would lose its digits."""


def mean_error(moments: Moments, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
    """Return the mean of ``|x - quantized x|**power`` for each candidate.

    Args:
        moments: The values.
        scale: Candidate scales, [M].
        zero_point: Candidate zero points, [M].
        grid: The integers at whose ends values saturate.
        power: 1 or 2.

    Returns:
        Mean errors, [M].
    """
    # Levels of 8-bit floats are not evenly spaced, which the sums over bins assume.
    by_levels = grid.dtype.is_float8 or grid.highest - grid.lowest < len(moments.counts)
    total = (_error_by_levels if by_levels else _error_by_bins)(moments, scale, zero_point, grid, power)
    return np.asarray(total / moments.total)


def mean_clipping(moments: Moments, low: Floats, high: Floats) -> Floats:
    """Return the mean squared distance of the values outside an interval from it, for each interval.

    Args:
        moments: The values.
        low: Lower ends, [M].
        high: Upper ends, [M].
    """
    infinity = np.full_like(low, np.inf)
    moment_sums = moments.between(np.stack([-infinity, low, high, infinity], axis=1))
    ends = np.stack([low, low, high], axis=1)
    squares = moment_sums.second - 2 * ends * moment_sums.first + ends * ends * moment_sums.mass
    return np.asarray(np.maximum(squares[:, 0] + squares[:, 2], 0.0) / moments.total)


def _error_by_levels(moments: Moments, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
    steps = grid.levels - zero_point[:, None]
    levels = steps * scale[:, None]
    edges = np.concatenate(
        [
            np.full_like(levels[:, :1], -np.inf),
            (steps[:, :-1] + steps[:, 1:]) / 2 * scale[:, None],
            np.full_like(levels[:, :1], np.inf),
        ],
        axis=1,
    )
    if power == 2:
        cells = moments.between(edges)
        return _not_negative(cells.second - 2 * levels * cells.first + levels * levels * cells.mass)
    points = np.empty((len(scale), 2 * levels.shape[1] + 1))
    points[:, ::2], points[:, 1::2] = edges, levels
    halves = moments.between(points)
    below, above = Sums(*(half[:, ::2] for half in halves)), Sums(*(half[:, 1::2] for half in halves))
    return _not_negative(above.first - below.first - levels * (above.mass - below.mass))


def _not_negative(errors: Floats) -> Floats:
    """Return the sum of the cells' errors, without what rounding made negative."""
    return np.asarray(np.maximum(errors.sum(axis=1), 0.0))


def _error_by_bins(moments: Moments, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
    errors = [
        _bins_error(moments.lower / step, moments.upper / step, (grid.lowest - zero, grid.highest - zero), power)
        @ moments.counts
        * step**power
        for step, zero in zip(scale, zero_point, strict=True)
    ]
    return np.array(errors)


def _bins_error(lower: Floats, upper: Floats, ends: tuple[float, float], power: int) -> Floats:
    """Return the mean error inside each bin, in steps to the `power`, for ends given in steps."""
    width = upper - lower
    narrow = width < _NARROW
    if narrow.all():
        return _points_error((lower + upper) / 2, ends, power)
    inside = _sawtooth_integral(_clip(upper, ends), power) - _sawtooth_integral(_clip(lower, ends), power)
    if upper[-1] > ends[1]:
        inside += _tail_integral(np.maximum(lower - ends[1], 0), np.maximum(upper - ends[1], 0), power)
    if lower[0] < ends[0]:
        inside += _tail_integral(np.maximum(ends[0] - upper, 0), np.maximum(ends[0] - lower, 0), power)
    width[narrow] = 1.0
    inside /= width
    inside[narrow] = _points_error((lower[narrow] + upper[narrow]) / 2, ends, power)
    return inside


def _points_error(points: Floats, ends: tuple[float, float], power: int) -> Floats:
    return np.asarray(np.abs(points - round_and_clip(points, *ends)) ** power)


def _clip(values: Floats, ends: tuple[float, float]) -> Floats:
    return np.minimum(np.maximum(values, ends[0]), ends[1])


def _sawtooth_integral(u: Floats, power: int) -> Floats:
    nearest = np.rint(u)
    remainder = u - nearest
    if power == 1:
        return np.asarray(nearest / 4 + remainder * np.abs(remainder) / 2)
    return np.asarray(nearest / 12 + remainder * remainder * remainder / 3)


def _tail_integral(near: Floats, far: Floats, power: int) -> Floats:
    """Return the integral of d**power from near to far, factored so that close ends keep their digits."""
    mean = (near + far) / 2 if power == 1 else (near * near + near * far + far * far) / 3
    return np.asarray((far - near) * mean)
