"""MinMax: the smallest and the largest value, or their average over the batches."""

import numpy as np

from quantry.numerics.grid import Grid, Range
from quantry.recipe import MinMax
from quantry.scale.values import Observed


def min_max_range(observed: Observed, options: MinMax, grid: Grid) -> Range:
    """Return the extremes of all values, or a weighted mean of the extremes of the batches.

    The weights are proportional to ``(1 - c)**age``, where the newest batch has age 0; c = 0 is the plain mean. Batches
    without a finite value are skipped.

    Args:
        observed: The values.
        options: Whether to average.
        grid: Not used: the extremes do not depend on the type.
    """
    del grid
    if options.moving_average is None:
        return observed.extrema()
    batches = observed.batch_extrema()
    finite = np.isfinite(batches.low) & np.isfinite(batches.high)
    age = np.cumsum(finite[:, ::-1], axis=1)[:, ::-1] - 1
    weight = finite * (1.0 - options.moving_average) ** np.maximum(age, 0)
    weight = weight / weight.sum(axis=1, keepdims=True)
    low, high = (np.where(weight > 0, ends, 0.0) for ends in (batches.low, batches.high))
    return Range((low * weight).sum(axis=1), (high * weight).sum(axis=1))
