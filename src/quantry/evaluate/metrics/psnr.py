"""Peak signal-to-noise ratio."""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import LIMIT_DB, Metric, decibels, value_span


class Psnr(Metric):
    """Peak signal-to-noise ratio, ``10 log10(span**2 / mean((r - q)**2))``, in decibels from -150 to 150.

    The span is that of the float model's output, its maximum minus its minimum, because outputs of networks have no
    fixed peak such as 255. The span of a constant output is its magnitude, and that of zeros is 1.
    """

    name = "psnr"
    higher_is_better = True
    best = LIMIT_DB
    worst = -LIMIT_DB

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the ratio in decibels."""
        # Divided by the span first, to avoid overflow of squares.
        return decibels(1.0, float(np.square((reference - quantized) / value_span(reference)).mean()))
