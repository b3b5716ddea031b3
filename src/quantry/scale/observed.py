"""What a calibration method can ask of the values it is to find a range for."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantry.scale.grid import Grid
from quantry.scale.range import Range

Floats = npt.NDArray[np.float64]


class Observed(Protocol):
    """Finite values of one tensor, in C groups that are each to get a range: its channels, or all of it (C = 1).

    Two implementations: `BinnedValues` for activations, whose values were counted, and `ExactValues` for constants.
    A method written against this face serves both, per tensor and per channel. Nothing here changes the values, and
    every answer is the same however often it is asked.
    """

    def extrema(self) -> Range:
        """Return smallest and largest value of each group, exact."""
        ...

    def batch_extrema(self) -> Range:
        """Return smallest and largest value of each group and batch, [C, batches], oldest batch first."""
        ...

    def quantile(self, fraction: float) -> Floats:
        """Return for each group the smallest value that has at least this fraction of the values at or below it, [C].

        Args:
            fraction: In [0, 1].
        """
        ...

    def magnitude_quantile(self, fraction: float) -> Floats:
        """Return for each group the smallest ``t`` for which at least this fraction has ``|x| <= t``, [C].

        Args:
            fraction: In [0, 1].
        """
        ...

    def histogram(self, bins: int) -> npt.NDArray[np.int64]:
        """Return counts in equal bins over ``[-max|x|, max|x|]`` of each group, [C, bins].

        Args:
            bins: Number of bins.
        """
        ...

    def error(self, scale: Floats, zero_point: Floats, grid: Grid, power: int) -> Floats:
        """Return the mean of ``|x - quantized x|**power`` of each group for each candidate, [C, M].

        Args:
            scale: Candidate scales, [C, M].
            zero_point: Candidate zero points, [C, M].
            grid: The integers at whose ends values saturate.
            power: 1 for the absolute, 2 for the squared error.
        """
        ...

    def clipping(self, low: Floats, high: Floats) -> Floats:
        """Return the mean squared distance of the values outside an interval from it, [C, M].

        Args:
            low: Lower ends, [C, M].
            high: Upper ends, [C, M].
        """
        ...
