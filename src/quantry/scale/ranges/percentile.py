"""Percentile calibration: ranges that clip a given fraction of the values.

`Percentile` uses a given percentile, `BestPercentile` searches for the one with the smallest error, and
`LayerWisePercentile` selects the best of several candidates for each tensor. The percentiles of activations are
computed from histograms by `quantry.numerics.histogram.quantile` and `magnitude_quantile`, those of weights from the
values.
"""

import numpy as np

from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid, Range
from quantry.recipe import BestPercentile, LayerWisePercentile, Percentile
from quantry.scale.values import Observed


def percentile_range(observed: Observed, options: Percentile, grid: Grid) -> Range:
    """Return ``[-t, t]`` that includes p percent of the values, or the p percent between two equally rare ends.

    The range never reaches beyond the observed extremes.

    Args:
        observed: The values.
        options: The percentile, and whether one threshold applies to both sides.
        grid: Not used: the range does not depend on the type.
    """
    del grid
    fraction = options.percentile / 100.0
    if options.symmetric:
        threshold = observed.magnitude_quantile(fraction)
        return Range(-threshold, threshold).clamped(observed.extrema())
    rare = (1.0 - fraction) / 2
    return Range(observed.quantile(rare), observed.quantile(1.0 - rare))


_POWERS = {"mae": 1, "mse": 2}
_FIRST, _NEXT, _ROUNDS = 17, 5, 3
_RAREST = 7.0
"""The search ends at the percentile that clips ``10**-7`` of the values; after it only the whole range is tried."""


def best_percentile_range(observed: Observed, options: BestPercentile, grid: Grid) -> Range:
    """Return the best range of each group: clipped fractions on a logarithmic grid, then finer ones around the best.

    Args:
        observed: The values.
        options: Where the search begins, whether one threshold applies to both sides, and the metric.
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
    ranges = percentile_range(observed, method, grid)
    scales = affine(Range(ranges.low[:, None], ranges.high[:, None]), grid)
    scale, zero_point = scales.scale.astype(np.float64), scales.zero_point.astype(np.float64)
    result: np.ndarray = observed.error(scale, zero_point, grid, power)[:, 0]
    return result


def layer_wise_percentile_range(observed: Observed, options: LayerWisePercentile, grid: Grid) -> Range:
    """Return the best range of the candidates; the first of equally good ones.

    Args:
        observed: The values.
        options: The percentiles, each as in `Percentile` with one threshold for both sides, and the metric.
        grid: The integers in use.
    """
    ranges = [percentile_range(observed, Percentile(candidate), grid) for candidate in options.candidates]
    candidates = Range(np.stack([r.low for r in ranges], axis=1), np.stack([r.high for r in ranges], axis=1))
    scales = affine(candidates, grid)
    error = observed.error(
        scales.scale.astype(np.float64), scales.zero_point.astype(np.float64), grid, _POWERS[options.metric]
    )
    best = error.argmin(axis=1)[:, None]
    return Range(
        np.take_along_axis(candidates.low, best, axis=1)[:, 0], np.take_along_axis(candidates.high, best, axis=1)[:, 0]
    )
