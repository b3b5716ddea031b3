"""NonOverflow: the finest scale at which every observed value keeps within half a step of itself."""

import numpy as np

from quantry.numerics.grid import Grid, Range
from quantry.numerics.power_of_two import aligned_zero_point, non_overflow_exponent, representable_range
from quantry.recipe import NonOverflow
from quantry.scale.values import Observed


def non_overflow_range(observed: Observed, options: NonOverflow, grid: Grid) -> Range:
    """Return the extremes, or what the smallest power-of-two scale represents that fits both.

    Unlike MinMax, which takes the power of two nearest to the float scale and may clip by up to a factor sqrt(2), this
    never clips an observed value (up to an eighth of float32's largest, where power-of-two scales end).

    Args:
        observed: The values.
        options: Has no fields.
        grid: The integers in use.
    """
    del options
    extrema = observed.extrema()
    if not grid.power_of_two:
        return extrema
    exponent = non_overflow_exponent(extrema, grid)
    chosen = representable_range(exponent, aligned_zero_point(extrema, exponent, grid), grid)
    # All-zero groups keep their empty range and with it the scale 1 that they have in every other method.
    empty = (extrema.low == 0) & (extrema.high == 0)
    return Range(np.where(empty, 0.0, chosen.low), np.where(empty, 0.0, chosen.high))
