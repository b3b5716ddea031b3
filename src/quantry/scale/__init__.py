"""Stage 5: from statistics and a calibration method to scale and zero point of every quantized tensor."""

from quantry.scale.ranges import find_range
from quantry.scale.stage import scale
from quantry.scale.values import BinnedValues, ExactValues, Observed
from quantry.scale.weights import constant_params

__all__ = [
    "BinnedValues",
    "ExactValues",
    "Observed",
    "constant_params",
    "find_range",
    "scale",
]
