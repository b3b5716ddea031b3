"""NonOverflow: the finest scale at which no observed value is clipped, so every error is at most half a step."""

import numpy as np

from quantry.numerics.grid import Grid, Range
from quantry.numerics.power_of_two import aligned_zero_point, non_overflow_exponent, representable_range
from quantry.recipe import NonOverflow
from quantry.scale.values import Observed


def non_overflow_range(observed: Observed, options: NonOverflow, grid: Grid) -> Range:
    """Return the extremes, or for power-of-two scales the range of the smallest scale that fits both.

    MinMax takes the power of two nearest to the float scale and may clip by up to a factor sqrt(2). This never clips an
    observed value (up to an eighth of float32's largest, where power-of-two scales end).

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
    scales = representable_range(exponent, aligned_zero_point(extrema, exponent, grid), grid)
    # Groups of zeros keep their empty range, and with it scale 1, as in every other method.
    empty = (extrema.low == 0) & (extrema.high == 0)
    return Range(np.where(empty, 0.0, scales.low), np.where(empty, 0.0, scales.high))
