"""The values of an activation, as the observe stage counted them."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.observe import TensorStats
from quantry.scale.error import mean_clipping, mean_error
from quantry.scale.grid import Grid
from quantry.scale.moments import Moments
from quantry.scale.quantiles import magnitude_quantile, quantile
from quantry.scale.range import Range

Floats = npt.NDArray[np.float64]


class BinnedValues:
    """`Observed` over the statistics of one tensor: exact extremes, and mass spread evenly inside narrow bins."""

    def __init__(self, stats: TensorStats) -> None:
        self._stats = stats

    @cached_property
    def _moments(self) -> Moments:
        distribution = self._stats.distribution()
        return Moments(distribution.lower, distribution.upper, distribution.counts)

    def extrema(self) -> Range:
        """Return smallest and largest value, [1]."""
        return Range(np.array([self._stats.minimum]), np.array([self._stats.maximum]))

    def batch_extrema(self) -> Range:
        """Return smallest and largest value of each batch, [1, batches]."""
        minima, maxima = self._stats.batch_minima, self._stats.batch_maxima
        return Range(minima[None].astype(np.float64), maxima[None].astype(np.float64))

    def quantile(self, fraction: float) -> Floats:
        """Return the smallest value with at least this fraction at or below it, [1]."""
        return np.array([quantile(self._stats, fraction)])

    def magnitude_quantile(self, fraction: float) -> Floats:
        """Return the smallest ``t`` with at least this fraction in ``[-t, t]``, [1]."""
        return np.array([magnitude_quantile(self._stats, fraction)])

    def histogram(self, bins: int) -> npt.NDArray[np.int64]:
        """Return counts in equal bins over ``[-max|x|, max|x|]``, [1, bins]."""
        largest = self.extrema().magnitude
        # A value on an edge belongs to the bin right of it, as in `numpy.histogram`; zero is such a value.
        inner = np.nextafter(np.linspace(-largest[0], largest[0], bins + 1)[1:-1], -np.inf)
        mass = self._moments.between(np.concatenate([[-np.inf], inner, [np.inf]])).mass
        # Rounding the running sum rather than each bin keeps the total.
        return np.diff(np.rint(np.cumsum(mass)), prepend=0.0).astype(np.int64)[None]

    def error(self, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
        """Return the mean error of each candidate, [1, M]."""
        return mean_error(self._moments, scale[0], zero_point[0], grid, power)[None]

    def clipping(self, low: Floats, high: Floats) -> Floats:
        """Return the mean squared distance of the values outside an interval from it, [1, M]."""
        return mean_clipping(self._moments, low[0], high[0])[None]
