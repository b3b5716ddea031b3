"""L1: mean absolute error."""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import Metric


class L1(Metric):
    """Mean absolute error, ``mean(|r - q|)``, in the unit of the output.

    The mean instead of the sum, so that it does not grow with the size of the output.
    """

    name = "l1"
    aliases = ("mae",)
    higher_is_better = False
    best = 0.0
    worst = float("inf")

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the mean absolute error, 0 or more."""
        return float(np.abs(reference - quantized).mean())
