"""MinMSE: the range with the least mean squared error between values and their quantized twins."""

from quantry.numerics.grid import Grid, Range
from quantry.recipe import MinMSE
from quantry.scale.least_error import least_error_exponent, least_error_shrink
from quantry.scale.values import Observed


def min_mse_range(observed: Observed, options: MinMSE, grid: Grid) -> Range:
    """Return the best power-of-two range, or the best of many shrunk ranges for a float scale.

    Args:
        observed: The values.
        options: Not used: what errors are looked at behind is in the values.
        grid: The integers in use, at whose ends values saturate.
    """
    del options
    return least_error_exponent(observed, grid) if grid.power_of_two else least_error_shrink(observed, grid)
