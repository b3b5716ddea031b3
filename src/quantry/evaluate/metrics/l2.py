"""L2: mean square error."""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import Metric


class L2(Metric):
    """Mean square error, ``mean((r - q)**2)``, in the squared unit of the output.

    No root is taken: AMD Quark's search calls this number L2, and tolerances that were chosen there keep their
    meaning here.
    """

    name = "l2"
    aliases = ("mse",)
    higher_is_better = False
    best = 0.0
    worst = float("inf")

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the mean square error, 0 or more."""
        return float(np.square(reference - quantized).mean())
