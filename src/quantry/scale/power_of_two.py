"""Power-of-two scales: the finest exponent at which nothing overflows, and ranges that stand for an exponent.

A value x overflows a scale s when its integer ``round_half_even(x / s) + zero_point`` lies outside the integers in
use; a value up to half a step beyond the last level still rounds to it and does not overflow. Everything here is exact:
dividing by a power of two loses nothing.
"""

import numpy as np
import numpy.typing as npt

from quantry.scale.affine import largest_exponent, smallest_exponent
from quantry.scale.grid import Grid
from quantry.scale.range import Range

Floats = npt.NDArray[np.float64]


def non_overflow_exponent(extrema: Range, grid: Grid) -> Floats:
    """Return the smallest exponent e for which no value in the range overflows the scale ``2**e``.

    Args:
        extrema: Smallest and largest value, of any shape; extended to hold zero.
        grid: The integers in use.

    Returns:
        Integers as float64, of the shape of the range, no larger than `largest_exponent` and no smaller than that of
        the smallest normal float32.
    """
    extrema = extrema.with_zero()
    span = extrema.magnitude if grid.symmetric else extrema.high - extrema.low
    # Half a step on either side may be saved against span / steps, so the answer is this guess or near it.
    with np.errstate(divide="ignore"):
        guess = np.ceil(np.log2(span / grid.steps))
    guess = np.clip(guess, smallest_exponent(), largest_exponent(grid))
    candidates = guess[..., None] + np.array([-2.0, -1.0, 0.0, 1.0])
    fits = _fits(Range(extrema.low[..., None], extrema.high[..., None]), candidates, grid)
    # Whatever fits one exponent fits all larger ones, so the number of misfits counts up to the first that fits.
    exponent = candidates[..., 0] + (~fits).sum(axis=-1)
    return np.asarray(np.clip(exponent, smallest_exponent(), largest_exponent(grid)))


def levels(values: Floats, exponent: Floats) -> Floats:
    """Return how many steps of ``2**exponent`` values are from zero, rounded half to even.

    Args:
        values: Real values.
        exponent: Integers as float64, of a shape that goes with that of the values.
    """
    return np.asarray(np.rint(np.ldexp(values, -exponent.astype(np.int64))))


def _fits(extrema: Range, exponent: Floats, grid: Grid) -> npt.NDArray[np.bool_]:
    low, high = levels(extrema.low, exponent), levels(extrema.high, exponent)
    if grid.symmetric:
        return np.asarray((low >= grid.lowest - grid.centre) & (high <= grid.highest - grid.centre))
    return np.asarray(high - low <= grid.highest - grid.lowest)


def aligned_zero_point(extrema: Range, exponent: Floats, grid: Grid) -> Floats:
    """Return the zero point that puts the lower end of the range on the smallest integer.

    Args:
        extrema: Smallest and largest value.
        exponent: Exponent of the scale, of the same shape.
        grid: The integers in use.
    """
    if grid.symmetric:
        return np.full(exponent.shape, float(grid.centre))
    low = levels(extrema.with_zero().low, exponent)
    return np.asarray(np.clip(grid.lowest - low, grid.lowest, grid.highest))


def representable_range(exponent: Floats, zero_point: Floats, grid: Grid) -> Range:
    """Return the range from which `affine` makes exactly this scale and zero point.

    Args:
        exponent: Exponents of the scales.
        zero_point: Zero points of the same shape.
        grid: The integers in use.
    """
    scale = np.exp2(exponent)
    if grid.symmetric:
        return Range(-grid.steps * scale, grid.steps * scale)
    return Range((grid.lowest - zero_point) * scale, (grid.highest - zero_point) * scale)
