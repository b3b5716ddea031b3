"""BestPercentile: the percentile that leaves the least error, searched on a continuous scale."""

import numpy as np

from quantry.recipe import BestPercentile, Percentile
from quantry.scale.affine import affine
from quantry.scale.grid import Grid
from quantry.scale.observed import Observed
from quantry.scale.range import Range
from quantry.scale.ranges.percentile import percentile_range

_POWERS = {"mae": 1, "mse": 2}
_FIRST, _NEXT, _ROUNDS = 17, 5, 3
_RAREST = 7.0
"""The search ends at the percentile that leaves ``10**-7`` of the values out; beyond it is the whole range."""


def best_percentile_range(observed: Observed, options: BestPercentile, grid: Grid) -> Range:
    """Return the best range for each group: rarities on a logarithmic grid, then finer ones around the best.

    Args:
        observed: The values.
        options: Where the search begins, whether one threshold serves both sides, and the metric.
        grid: The integers in use.
    """
    start = -np.log10(1.0 - options.lowest / 100.0)
    groups = len(observed.extrema().low)
    rarities = np.linspace(start, _RAREST, _FIRST)
    best = [Percentile(100.0)] * groups
    least = np.full(groups, np.inf)
    spacing = float(rarities[1] - rarities[0])
    candidates = [100.0, *(100.0 * (1.0 - 10.0**-rarities))]
    for _ in range(_ROUNDS):
        for percent in candidates:
            method = Percentile(float(percent), symmetric=options.symmetric)
            error = _error(observed, method, grid, _POWERS[options.metric])
            for group in np.flatnonzero(error < least):
                best[group], least[group] = method, error[group]
        around = {-np.log10(max(1.0 - method.percentile / 100.0, 10.0**-_RAREST)) for method in best}
        steps = np.linspace(-spacing, spacing, _NEXT)
        finer = np.unique(np.clip([centre + step for centre in around for step in steps], start, _RAREST))
        candidates = [*(100.0 * (1.0 - 10.0**-finer))]
        spacing /= _NEXT - 1
    ranges = {method: percentile_range(observed, method, grid) for method in set(best)}
    ends = [(ranges[method].low[group], ranges[method].high[group]) for group, method in enumerate(best)]
    return Range(np.array([low for low, _ in ends]), np.array([high for _, high in ends]))


def _error(observed: Observed, method: Percentile, grid: Grid, power: int) -> np.ndarray:
    found = percentile_range(observed, method, grid)
    chosen = affine(Range(found.low[:, None], found.high[:, None]), grid)
    scale, zero_point = chosen.scale.astype(np.float64), chosen.zero_point.astype(np.float64)
    result: np.ndarray = observed.error(scale, zero_point, grid, power)[:, 0]
    return result
