"""Peak signal-to-noise ratio."""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import LIMIT_DB, Metric, decibels, value_span


class Psnr(Metric):
    """Peak signal-to-noise ratio, ``10 log10(span**2 / mean((r - q)**2))``, in decibels from -150 to 150.

    The span is that of the float model's own output, its maximum less its minimum, because outputs of networks have no
    255 that stands for white. A constant output has its magnitude for span, and one of zeros has 1.
    """

    name = "psnr"
    higher_is_better = True
    best = LIMIT_DB
    worst = -LIMIT_DB

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the ratio in decibels."""
        # In units of the span, so that no square overflows that need not.
        return decibels(1.0, float(np.square((reference - quantized) / value_span(reference)).mean()))
