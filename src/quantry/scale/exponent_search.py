"""The power-of-two scale with the least squared error.

The search starts at the finest scale without overflow and goes on to finer ones. A coarser one cannot be better: its
levels are among those of the finer one, so every value is at least as far from them. It ends when clipping alone costs
more than the best scale so far, because finer scales clip more; a value that is not clipped is at most half a step off,
so clipping costs at least the error less a quarter of the squared step. With a symmetric grid the optimum over all
exponents is therefore certain.
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

_SHIFTS = 9
"""Zero points tried between the one that aligns the lower end and the one that aligns the upper end."""


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
    extrema = observed.extrema()
    exponent = non_overflow_exponent(extrema, grid)
    best = _best_of(observed, exponent, aligned_zero_point(extrema, exponent, grid)[:, None], grid)
    done = (best.error == 0) | (exponent <= smallest_exponent())
    while not done.all():
        exponent = np.maximum(exponent - 1, smallest_exponent())
        tried = _best_of(observed, exponent, _shifts(extrema, exponent, grid), grid)
        best = best.updated(tried)
        clipping = tried.error - np.exp2(2 * exponent) / 4
        done |= (clipping >= best.error) | (exponent <= smallest_exponent())
    if not grid.symmetric:
        best = _refined(observed, best, extrema, grid)
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


def _shifts(extrema: Range, exponent: Floats, grid: Grid) -> Floats:
    """Return the zero points to try, [C, Z], from the one that aligns the low end to the one that aligns the high."""
    if grid.symmetric:
        return aligned_zero_point(extrema, exponent, grid)[:, None]
    first, last = _alignments(extrema, exponent, grid)
    return np.rint(np.linspace(first, last, _SHIFTS, axis=1))


def _alignments(extrema: Range, exponent: Floats, grid: Grid) -> tuple[Floats, Floats]:
    high = levels(extrema.with_zero().high, exponent)
    return aligned_zero_point(extrema, exponent, grid), np.clip(grid.highest - high, grid.lowest, grid.highest)


def _refined(observed: Observed, best: _Best, extrema: Range, grid: Grid) -> _Best:
    """Return the best with its zero point improved: finer and finer steps around it, down to single integers."""
    first, last = _alignments(extrema, best.exponent, grid)
    reach = np.abs(last - first).max(initial=0.0) / (_SHIFTS - 1)
    while reach >= 1:
        offsets = np.rint(np.linspace(-reach, reach, _SHIFTS))
        around = np.clip(best.zero_point[:, None] + offsets, grid.lowest, grid.highest)
        best = best.updated(_best_of(observed, best.exponent, around, grid))
        reach = 0 if reach <= (_SHIFTS - 1) / 2 else reach / ((_SHIFTS - 1) / 2)
    return best
