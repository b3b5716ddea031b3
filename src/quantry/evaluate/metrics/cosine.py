"""Cosine similarity."""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import Metric


class Cosine(Metric):
    """Cosine of the angle between the outputs as vectors, ``r.q / (|r| |q|)``, from -1 to 1.

    A common factor does not matter: an output that is twice as large everywhere scores 1. Two vectors of zeros score 1;
    a vector of zeros compared with any other scores 0.
    """

    name = "cosine"
    aliases = ("cos", "cosine_similarity")
    higher_is_better = True
    best = 1.0
    worst = -1.0

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the cosine."""
        ours, theirs = reference.ravel(), quantized.ravel()
        largest_ours, largest_theirs = np.abs(ours).max(), np.abs(theirs).max()
        if largest_ours == 0 or largest_theirs == 0:
            return 1.0 if largest_ours == largest_theirs else 0.0
        # Divided by the largest values, because squares of very large or very small values exceed float64's range.
        ours, theirs = ours / largest_ours, theirs / largest_theirs
        return float(np.clip(ours @ theirs / np.sqrt((ours @ ours) * (theirs @ theirs)), -1.0, 1.0))
