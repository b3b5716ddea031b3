"""Distribution: the scale with which values have the spread of the numbers that an 8-bit float has.

The method of onnxruntime for 8-bit floats: ``scale = std(f(x)) / std(all values of the type)``, where f is the identity
or the cube root. Values far outside saturate; in exchange, small values have more digits. Integers have no denser
middle, so their range is that of MinMax, as in onnxruntime.
"""

import numpy as np

from quantry.numerics.grid import Grid, Range
from quantry.recipe import Distribution
from quantry.scale.values import Observed

_BINS = 2048  # onnxruntime's number for this method


def distribution_range(observed: Observed, options: Distribution, grid: Grid) -> Range:
    """Return the range of a scale with equal spreads, or the extremes for integers and constant tensors.

    Args:
        observed: The values.
        options: The power of the values.
        grid: The type.
    """
    extrema = observed.extrema()
    if not grid.dtype.is_float8:
        return extrema
    edges = np.linspace(-1.0, 1.0, _BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    spread = float(np.std(grid.levels))
    ends = []
    for counts, magnitude in zip(observed.histogram(_BINS), extrema.magnitude, strict=True):
        values = middle * magnitude
        values = np.sign(values) * np.abs(values) ** options.power
        share = counts / max(int(counts.sum()), 1)
        mean = float((share * values).sum())
        deviation = float(np.sqrt((share * (values - mean) ** 2).sum()))
        ends.append(deviation / spread * grid.steps if deviation > 0 else float(magnitude))
    return Range(-np.array(ends), np.array(ends))
