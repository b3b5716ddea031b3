"""From a range to scale and zero point.

::

    symmetric:   scale = max(|low|, |high|) / steps          zero_point = centre
    asymmetric:  scale = (high - low) / (highest - lowest)   zero_point = round_half_even(lowest - low / scale)

after the range was extended to hold zero. All in float64, the scale then rounded to float32 or to the nearest power
of two; the zero point stays that of the unrounded scale, so that a power of two clips both ends in proportion. A range
that was made from a power of two, as NonOverflow and MinMSE make theirs, comes back as exactly that power.

Power-of-two scales: the finest exponent at which nothing overflows, and ranges that stand for an exponent.

A value x overflows a scale s when its integer ``round_half_even(x / s) + zero_point`` lies outside the integers in
use; a value up to half a step beyond the last level still rounds to it and does not overflow. Everything here is exact:
dividing by a power of two loses nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantry.numerics.grid import Grid, Range

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_LARGEST_END = float(np.finfo(np.float32).max) / 2
_SMALLEST_EXPONENT = -126


@dataclass(frozen=True, eq=False)
class Affine:
    """Scales and zero points, one for each range they were made from.

    Attributes:
        scale: float32, positive and normal.
        zero_point: int64 of the same shape.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]


def affine(interval: Range, grid: Grid) -> Affine:
    """Return scale and zero point of each range.

    Ranges too narrow for a normal float32 scale, such as those of all-zero tensors, get scale 1. Ends beyond half of
    float32's largest value are moved there, so that no scale is infinite.

    Args:
        interval: Ends of any shape.
        grid: The integers to map to.
    """
    interval = interval.with_zero()
    low = np.maximum(interval.low, -_LARGEST_END)
    high = np.minimum(interval.high, _LARGEST_END)
    span = np.maximum(-low, high) if grid.symmetric else high - low
    scale = span / grid.steps
    degenerate = scale < _SMALLEST_NORMAL
    scale = np.where(degenerate, 1.0, scale)
    zero_point = np.full(scale.shape, grid.centre, np.int64)
    if not grid.symmetric:
        aligned = np.clip(np.rint(grid.lowest - low / scale), grid.lowest, grid.highest)
        zero_point = np.where(degenerate, 0, aligned).astype(np.int64)
    if grid.power_of_two:
        scale = nearest_power_of_two(scale, grid)
    return Affine(scale.astype(np.float32), zero_point)


def nearest_power_of_two(scale: npt.NDArray[np.float64], grid: Grid) -> npt.NDArray[np.float64]:
    """Return the powers of two nearest to positive scales on a logarithmic axis, within the allowed exponents.

    Args:
        scale: Positive scales of any shape.
        grid: The integers they go with.
    """
    exponent = np.rint(np.log2(scale))
    return np.asarray(np.exp2(np.clip(exponent, _SMALLEST_EXPONENT, largest_exponent(grid))))


def largest_exponent(grid: Grid) -> int:
    """Return the largest exponent of a power-of-two scale: the whole range then ends within half of float32's.

    Args:
        grid: The integers in use.
    """
    return 127 - (grid.highest - grid.lowest).bit_length()


def smallest_exponent() -> int:
    """Return the smallest exponent of a power-of-two scale that is a normal float32."""
    return _SMALLEST_EXPONENT


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
