"""Power-of-two scales and their exponents, which integer NPUs need because they shift instead of multiply.

::

    scale = 2**exponent = 2**-position

The position is the number of fraction bits of the fixed-point numbers: position 3 means steps of 1/8.

A value x overflows a scale s if its integer ``round_half_even(x / s) + zero_point`` lies outside the integers in use. A
value up to half a step beyond the last level still rounds to it and does not overflow. Everything here is exact,
because dividing by a power of two only changes the exponent of a float.
"""

import math

import numpy as np
import numpy.typing as npt

from quantry.numerics.grid import Grid, Range

Floats = npt.NDArray[np.float64]

SMALLEST_EXPONENT = -126
"""The smallest power of two that is a normal float32. Subnormal scales are flushed to zero by some runtimes."""


def scale_at(position: float) -> float:
    """Return the scale ``2**-position``.

    Args:
        position: Number of fraction bits; may be negative. Some files spell the whole number as a float.
    """
    return float(2.0**-position)


def position_of(scale: float) -> int | None:
    """Return p for a scale of ``2**-p``, or None for any other number.

    Args:
        scale: Any number.

    Example:
        >>> position_of(0.125)
        3
    """
    mantissa, exponent = math.frexp(scale)
    return 1 - exponent if mantissa == 0.5 else None


def nearest_exponent(values: Floats) -> Floats:
    """Return the exponents of the powers of two nearest to positive values on a logarithmic axis.

    Args:
        values: Positive values of any shape.
    """
    return np.asarray(np.rint(np.log2(values)))


def largest_exponent(grid: Grid) -> int:
    """Return the largest allowed exponent; the whole range then fits into half of float32's range.

    Args:
        grid: The integers in use.
    """
    return 127 - (grid.highest - grid.lowest).bit_length()


def non_overflow_exponent(extrema: Range, grid: Grid) -> Floats:
    """Return the smallest exponent e for which no value in the range overflows the scale ``2**e``.

    Args:
        extrema: Smallest and largest value, of any shape; extended to include zero.
        grid: The integers in use.

    Returns:
        Integers as float64, of the shape of the range, between `SMALLEST_EXPONENT` and `largest_exponent`.
    """
    extrema = extrema.with_zero()
    span = extrema.magnitude if grid.symmetric else extrema.high - extrema.low
    # Compared with span / steps, rounding gains up to half a step on either side, so the answer is this guess or next
    # to it.
    with np.errstate(divide="ignore"):
        guess = np.ceil(np.log2(span / grid.steps))
    guess = np.clip(guess, SMALLEST_EXPONENT, largest_exponent(grid))
    candidates = guess[..., None] + np.array([-2.0, -1.0, 0.0, 1.0])
    fits = _fits(Range(extrema.low[..., None], extrema.high[..., None]), candidates, grid)
    # A range that fits at one exponent fits at all larger ones, so the number of misfits is the index of the first fit.
    exponent = candidates[..., 0] + (~fits).sum(axis=-1)
    return np.asarray(np.clip(exponent, SMALLEST_EXPONENT, largest_exponent(grid)))


def levels(values: Floats, exponent: Floats) -> Floats:
    """Return the distance of values from zero in steps of ``2**exponent``, rounded half to even and not clipped.

    Args:
        values: Real values.
        exponent: Integers as float64, broadcastable to the values.
    """
    return np.asarray(np.rint(np.ldexp(values, -exponent.astype(np.int64))))


def _fits(extrema: Range, exponent: Floats, grid: Grid) -> npt.NDArray[np.bool_]:
    low, high = levels(extrema.low, exponent), levels(extrema.high, exponent)
    if grid.symmetric:
        return np.asarray((low >= grid.lowest - grid.centre) & (high <= grid.highest - grid.centre))
    return np.asarray(high - low <= grid.highest - grid.lowest)


def aligned_zero_point(extrema: Range, exponent: Floats, grid: Grid) -> Floats:
    """Return the zero point that maps the lower end of the range to the smallest integer.

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
    """Return the range from which `quantry.numerics.affine.affine` computes exactly this scale and zero point.

    Args:
        exponent: Exponents of the scales.
        zero_point: Zero points of the same shape.
        grid: The integers in use.
    """
    scale = np.exp2(exponent)
    if grid.symmetric:
        return Range(-grid.steps * scale, grid.steps * scale)
    return Range((grid.lowest - zero_point) * scale, (grid.highest - zero_point) * scale)
