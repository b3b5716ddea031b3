"""The power-of-two scale with the least squared error.

The search starts at the finest scale without overflow and goes on to finer ones. A coarser one cannot be better: its
levels are among those of the finer one, so every value is at least as far from them. It ends when clipping alone costs
more than the best scale so far, because finer scales clip more; a value that is not clipped is at most half a step off,
so clipping costs at least the error less a quarter of the squared step. With a symmetric grid the optimum over all
exponents is therefore certain; with an asymmetric one it is the best of a few zero points for each exponent.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantry.scale.affine import smallest_exponent
from quantry.scale.grid import Grid
from quantry.scale.observed import Observed
from quantry.scale.power_of_two import aligned_zero_point, levels, non_overflow_exponent, representable_range
from quantry.scale.range import Range

Floats = npt.NDArray[np.float64]

_SHIFTS = 17
"""Zero points compared at a time on the way to the one that clips least."""


@dataclass(frozen=True, eq=False)
class _Best:
    """The best scale of each group so far: mean squared error, exponent and zero point, [C] each."""

    error: Floats
    exponent: Floats
    zero_point: Floats

    def updated(self, other: "_Best") -> "_Best":
        better = other.error < self.error
        return _Best(
            np.where(better, other.error, self.error),
            np.where(better, other.exponent, self.exponent),
            np.where(better, other.zero_point, self.zero_point),
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
    done = (best.error == 0) | (exponent <= smallest_exponent())
    while not done.all():
        exponent = np.maximum(exponent - 1, smallest_exponent())
        tried = _best_of(observed, exponent, _zero_points(observed, extrema, exponent, grid), grid)
        best = best.updated(tried)
        clipping = tried.error - np.exp2(2 * exponent) / 4
        done |= (clipping >= best.error) | (exponent <= smallest_exponent())
    chosen = representable_range(best.exponent, best.zero_point, grid)
    empty = extrema.magnitude == 0
    return Range(np.where(empty, 0.0, chosen.low), np.where(empty, 0.0, chosen.high))


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

    They move the window of representable values over the multiples of one step, so they differ in what is clipped and
    hardly in how the rest is rounded: the low end aligned, the high end aligned, the centre, and the least clipping.
    """
    low = aligned_zero_point(extrema, exponent, grid)
    if grid.symmetric:
        return low[:, None]
    high = np.clip(grid.highest - levels(extrema.high, exponent), grid.lowest, grid.highest)
    centre = np.rint((low + high) / 2)
    return np.stack([low, high, centre, _least_clipping(observed, exponent, (low, high), grid)], axis=1)


def _least_clipping(observed: Observed, exponent: Floats, between: tuple[Floats, Floats], grid: Grid) -> Floats:
    """Return the zero point that clips least, [C]: clipping is convex in it, so finer and finer steps lead there."""
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
