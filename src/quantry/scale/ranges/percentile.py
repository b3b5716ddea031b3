"""Percentile: the range that holds all but the rarest values."""

from quantry.recipe import Percentile
from quantry.scale.grid import Grid
from quantry.scale.observed import Observed
from quantry.scale.range import Range


def percentile_range(observed: Observed, options: Percentile, grid: Grid) -> Range:
    """Return ``[-t, t]`` with p percent of the values inside, or the p percent between two equally rare ends.

    The range never reaches beyond the observed extremes.

    Args:
        observed: The values.
        options: The percentile, and whether one threshold serves both sides.
        grid: Not used: the range is the same for every type.
    """
    del grid
    fraction = options.percentile / 100.0
    if options.symmetric:
        threshold = observed.magnitude_quantile(fraction)
        return Range(-threshold, threshold).clamped(observed.extrema())
    rare = (1.0 - fraction) / 2
    return Range(observed.quantile(rare), observed.quantile(1.0 - rare))
