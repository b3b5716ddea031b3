"""The span of values that an error is compared with."""

import sys

import numpy as np
from numpy.typing import NDArray


def value_span(reference: NDArray[np.float64]) -> float:
    """Return the maximum less the minimum, of a constant array its magnitude, and 1 of an array of zeros.

    Args:
        reference: Finite values, not empty.

    Returns:
        A number above 0.
    """
    low, high = float(reference.min()), float(reference.max())
    return min(high - low, sys.float_info.max) or abs(high) or 1.0
