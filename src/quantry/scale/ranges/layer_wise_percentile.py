"""LayerWisePercentile: for each tensor the percentile that leaves the least error."""

import numpy as np

from quantry.recipe import LayerWisePercentile, Percentile
from quantry.scale.affine import affine
from quantry.scale.grid import Grid
from quantry.scale.observed import Observed
from quantry.scale.range import Range
from quantry.scale.ranges.percentile import percentile_range

_POWERS = {"mae": 1, "mse": 2}


def layer_wise_percentile_range(observed: Observed, options: LayerWisePercentile, grid: Grid) -> Range:
    """Return the best of the candidates' ranges; of equally good ones the first.

    Args:
        observed: The values.
        options: The percentiles, each as in `Percentile` with one threshold for both sides, and the metric.
        grid: The integers in use.
    """
    ranges = [percentile_range(observed, Percentile(candidate), grid) for candidate in options.candidates]
    candidates = Range(np.stack([r.low for r in ranges], axis=1), np.stack([r.high for r in ranges], axis=1))
    chosen = affine(candidates, grid)
    error = observed.error(
        chosen.scale.astype(np.float64), chosen.zero_point.astype(np.float64), grid, _POWERS[options.metric]
    )
    best = error.argmin(axis=1)[:, None]
    return Range(
        np.take_along_axis(candidates.low, best, axis=1)[:, 0], np.take_along_axis(candidates.high, best, axis=1)[:, 0]
    )
