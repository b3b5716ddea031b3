"""Signal-to-quantization-noise ratio."""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import LIMIT_DB, Metric, decibels


class Sqnr(Metric):
    """Signal-to-quantization-noise ratio, ``10 log10(sum(r**2) / sum((r - q)**2))``, in decibels from -150 to 150.

    0 dB means an error as large as the output itself; one bit is about 6 dB. An output of zeros has no signal: any
    error in it scores -150.
    """

    name = "sqnr"
    aliases = ("snr",)
    higher_is_better = True
    best = LIMIT_DB
    worst = -LIMIT_DB

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the ratio in decibels."""
        largest = float(np.abs(reference).max())
        if largest == 0:
            return decibels(0.0, float(np.abs(quantized).max()))
        # Divided by the largest value first, to avoid overflow of squares.
        noise = np.square((reference - quantized) / largest).sum()
        return decibels(float(np.square(reference / largest).sum()), float(noise))
