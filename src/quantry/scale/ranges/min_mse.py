"""MinMSE: the range with the smallest mean squared error between values and their quantized values.

For power-of-two scales, the search starts at the finest scale without overflow and tries finer ones. A coarser one
cannot be better: its levels are a subset of those of the finer one. The search ends when clipping alone costs more than
the best scale so far, because finer scales clip more; a value that is not clipped is at most half a step off, so
clipping costs at least the error minus a quarter of the squared step. The result is optimal for symmetric grids; for
asymmetric ones it is the best of a few zero points per exponent.

For float scales, a grid of shrunk ranges is compared, then finer grids around the best. The range is shrunk by factors
``2**-x``, on both sides together if the grid is symmetric or one side is empty, and independently otherwise. Once the
values outside a range alone cost more than the best range so far, all narrower ranges are worse.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid, Range
from quantry.numerics.power_of_two import (
    SMALLEST_EXPONENT,
    aligned_zero_point,
    levels,
    non_overflow_exponent,
    representable_range,
)
from quantry.recipe import MinMSE
from quantry.scale.values import Observed

Floats = npt.NDArray[np.float64]

_SHIFTS = 17
"""Number of zero points compared at a time in the search for the one that clips least."""


def min_mse_range(observed: Observed, options: MinMSE, grid: Grid) -> Range:
    """Return the best power-of-two range, or the best of many shrunk ranges for a float scale.

    Args:
        observed: The values.
        options: Not used: `observed` already measures errors where the options ask for them.
        grid: The integers in use; values are clipped to the ends.
    """
    del options
    return least_error_exponent(observed, grid) if grid.power_of_two else least_error_shrink(observed, grid)


@dataclass(frozen=True, eq=False)
class _Best:
    """The best scale of each group so far: mean squared error, exponent and zero point, [C] each."""

    error: Floats
    exponent: Floats
    zero_point: Floats

    def updated(self, candidate: "_Best") -> "_Best":
        better = candidate.error < self.error
        return _Best(
            np.where(better, candidate.error, self.error),
            np.where(better, candidate.exponent, self.exponent),
            np.where(better, candidate.zero_point, self.zero_point),
        )


def least_error_exponent(observed: Observed, grid: Grid) -> Range:
    """Return the range of the power-of-two scale, and zero point, with the least squared error.

    Args:
        observed: The values.
        grid: The integers in use.
    """
    extrema = observed.extrema().with_zero()
    exponent = non_overflow_exponent(extrema, grid)
    best = _best_of(observed, exponent, aligned_zero_point(extrema, exponent, grid)[:, None], grid)
    done = (best.error == 0) | (exponent <= SMALLEST_EXPONENT)
    while not done.all():
        exponent = np.maximum(exponent - 1, SMALLEST_EXPONENT)
        tried = _best_of(observed, exponent, _zero_points(observed, extrema, exponent, grid), grid)
        best = best.updated(tried)
        clipping = tried.error - np.exp2(2 * exponent) / 4
        done |= (clipping >= best.error) | (exponent <= SMALLEST_EXPONENT)
    scales = representable_range(best.exponent, best.zero_point, grid)
    empty = extrema.magnitude == 0
    return Range(np.where(empty, 0.0, scales.low), np.where(empty, 0.0, scales.high))


def _best_of(observed: Observed, exponent: Floats, zero_points: Floats, grid: Grid) -> _Best:
    """Return the best of several zero points, [C, Z], at one exponent for each group, [C]."""
    scale = np.repeat(np.exp2(exponent)[:, None], zero_points.shape[1], axis=1)
    error = observed.error(scale, zero_points, grid, 2)
    index = error.argmin(axis=1)[:, None]
    return _Best(
        np.take_along_axis(error, index, axis=1)[:, 0],
        exponent,
        np.take_along_axis(zero_points, index, axis=1)[:, 0],
    )


def _zero_points(observed: Observed, extrema: Range, exponent: Floats, grid: Grid) -> Floats:
    """Return the zero points to try, [C, Z].

    They shift the representable interval by multiples of one step, so they differ in what is clipped and hardly in how
    the rest is rounded: the low end aligned, the high end aligned, the centre, and the least clipping.
    """
    low = aligned_zero_point(extrema, exponent, grid)
    if grid.symmetric:
        return low[:, None]
    high = np.clip(grid.highest - levels(extrema.high, exponent), grid.lowest, grid.highest)
    centre = np.rint((low + high) / 2)
    return np.stack([low, high, centre, _least_clipping(observed, exponent, (low, high), grid)], axis=1)


def _least_clipping(observed: Observed, exponent: Floats, between: tuple[Floats, Floats], grid: Grid) -> Floats:
    """Return the zero point that clips least, [C]: clipping is convex in it, so the search refines around the best."""
    scale = np.exp2(exponent)[:, None]
    low, high = (np.asarray(bound(*between)) for bound in (np.minimum, np.maximum))
    while True:
        zero_points = np.rint(np.linspace(low, high, _SHIFTS, axis=1))
        clipping = observed.clipping((grid.lowest - zero_points) * scale, (grid.highest - zero_points) * scale)
        best = np.take_along_axis(zero_points, clipping.argmin(axis=1)[:, None], axis=1)[:, 0]
        reach = np.ceil((high - low) / (_SHIFTS - 1))
        if (reach <= 1).all():
            return best
        low, high = np.maximum(low, best - reach), np.minimum(high, best + reach)


_DEEPEST = 32
"""No range is shrunk by more than this power of two, which is beyond the resolution of every type."""

_LINE_ROUNDS = ((1 / 4, 8), (1 / 32, 4))

_PLANE_ROUNDS = ((1 / 2, 2), (1 / 4, 2))

_SIDE_ROUNDS = ((1 / 8, 8), (1 / 64, 4))
"""Finer grids around the best: half their width in powers of two, and their steps to either side."""

_NARROW, _NARROW_ROUNDS = 8, ((1 / 256, 8),)
"""Values far from zero that lie within this many steps of each other, such as depths of a flat scene: what counts is
how close the next level comes. The other grids are coarser than a step there."""


@dataclass(frozen=True, eq=False)
class _Shrinks:
    """Powers of two by which the low and the high ends are shrunk, [C, M] each."""

    low: Floats
    high: Floats

    def moved(self, by: "_Shrinks") -> "_Shrinks":
        return _Shrinks(np.maximum(self.low + by.low, 0.0), np.maximum(self.high + by.high, 0.0))

    def at(self, index: npt.NDArray[np.int64]) -> "_Shrinks":
        return _Shrinks(np.take_along_axis(self.low, index, axis=1), np.take_along_axis(self.high, index, axis=1))


def least_error_shrink(observed: Observed, grid: Grid) -> Range:
    """Return the shrunk range whose float scale has the least squared error.

    Args:
        observed: The values.
        grid: The integers in use.
    """
    extrema = observed.extrema().with_zero()
    two_sided = ((extrema.low < 0) & (extrema.high > 0)).any()
    search = _Search(observed, grid, extrema)
    best = search.line() if grid.symmetric or not two_sided else search.plane()
    inside = observed.extrema()
    narrow = inside.high - inside.low < _NARROW * extrema.magnitude / grid.steps
    if narrow.any():
        best = search.refined(best, narrow[:, None])
    clipped = search.shrunk(best)
    return Range(clipped.low[:, 0], clipped.high[:, 0])


class _Search:
    """One search over the values of one tensor."""

    def __init__(self, observed: Observed, grid: Grid, extrema: Range) -> None:
        self._observed = observed
        self._grid = grid
        # A symmetric grid represents both sides equally far, so shrinking starts from the larger side.
        self._start = Range(-extrema.magnitude, extrema.magnitude) if grid.symmetric else extrema

    def shrunk(self, by: _Shrinks) -> Range:
        """Return the ranges, [C, M]."""
        return Range(self._start.low[:, None] * np.exp2(-by.low), self._start.high[:, None] * np.exp2(-by.high))

    def line(self) -> _Shrinks:
        """Return the best shrink, [C, 1], the same for both sides."""
        steps = np.arange(0, 4 * self._reach(_both)[0] + 1) / 4
        best, _ = self._best_of(_both(np.tile(steps, (len(self._start.low), 1))))
        for offsets in _offsets(_LINE_ROUNDS):
            best, _ = self._best_of(best.moved(_both(offsets)))
        return best

    def refined(self, best: _Shrinks, active: npt.NDArray[np.bool_]) -> _Shrinks:
        """Return the best shrink near another one, [C, 1], for some of the groups."""
        current = best
        for offsets in _offsets(_NARROW_ROUNDS):
            current, _ = self._best_of(current.moved(_both(offsets)))
        return _Shrinks(np.where(active, current.low, best.low), np.where(active, current.high, best.high))

    def plane(self) -> _Shrinks:
        """Return the best shrink of either side, [C, 1]."""
        _, error = self._reach(_both)
        lows = _axis(self._reach(_low_only, error)[0])
        highs = _axis(self._reach(_high_only, error)[0])
        low, high = (np.tile(side.ravel(), (len(self._start.low), 1)) for side in np.meshgrid(lows, highs))
        best, _ = self._best_of(_Shrinks(low, high))
        for offsets in _offsets(_PLANE_ROUNDS):
            low, high = (side.ravel() for side in np.meshgrid(offsets, offsets))
            best, _ = self._best_of(best.moved(_Shrinks(low, high)))
        for offsets in _offsets(_SIDE_ROUNDS):
            best, _ = self._best_of(best.moved(_high_only(offsets)))
            best, _ = self._best_of(best.moved(_low_only(offsets)))
        return best

    def _best_of(self, candidates: _Shrinks) -> tuple[_Shrinks, Floats]:
        """Return the candidate with the least error, [C, 1], and that error, [C]."""
        scales = affine(self.shrunk(candidates), self._grid)
        scale, zero_point = scales.scale.astype(np.float64), scales.zero_point.astype(np.float64)
        error = self._observed.error(scale, zero_point, self._grid, 2)
        index = error.argmin(axis=1)[:, None]
        return candidates.at(index), np.take_along_axis(error, index, axis=1)[:, 0]

    def _reach(self, along: Callable[[Floats], _Shrinks], best: Floats | None = None) -> tuple[int, Floats]:
        """Return how many octaves of shrinking can improve any group, and the smallest error on the way, [C].

        If `best` is given, nothing is quantized: only the error of clipping is compared with it.
        """
        groups = len(self._start.low)
        has_best = best is not None
        least = best if best is not None else np.full(groups, np.inf)
        for octave in range(_DEEPEST):
            candidate = along(np.full((groups, 1), float(octave)))
            outside = self.shrunk(candidate)
            if (self._observed.clipping(outside.low, outside.high)[:, 0] >= least).all():
                return octave, least
            if not has_best:
                least = np.minimum(least, self._best_of(candidate)[1])
        return _DEEPEST, least


def _both(shrink: Floats) -> _Shrinks:
    return _Shrinks(shrink, shrink)


def _low_only(shrink: Floats) -> _Shrinks:
    return _Shrinks(shrink, np.zeros_like(shrink))


def _high_only(shrink: Floats) -> _Shrinks:
    return _Shrinks(np.zeros_like(shrink), shrink)


def _offsets(rounds: tuple[tuple[float, int], ...]) -> Iterator[Floats]:
    return (np.linspace(-reach, reach, 2 * count + 1) for reach, count in rounds)


def _axis(octaves: int) -> Floats:
    """Return shrinks from 0 to a number of octaves: half an octave apart, wider if there are many."""
    return np.linspace(0.0, octaves, min(2 * octaves, 16) + 1)
