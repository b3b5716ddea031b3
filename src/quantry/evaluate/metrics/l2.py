"""L2: mean squared error."""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import Metric


class L2(Metric):
    """Mean squared error, ``mean((r - q)**2)``, in the squared unit of the output.

    Without the square root: AMD Quark's search calls this number L2, and tolerances chosen there keep their meaning.
    """

    name = "l2"
    aliases = ("mse",)
    higher_is_better = False
    best = 0.0
    worst = float("inf")

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the mean squared error, 0 or more."""
        return float(np.square(reference - quantized).mean())
