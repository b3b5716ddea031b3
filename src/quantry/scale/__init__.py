"""Stage 5: from statistics and a calibration method to scale and zero point of every quantized tensor."""

from quantry.scale.bias import derived_bias_params
from quantry.scale.binned_values import BinnedValues
from quantry.scale.exact_values import ExactValues
from quantry.scale.grid import Grid
from quantry.scale.observed import Observed
from quantry.scale.quant_params import QuantParams
from quantry.scale.range import Range
from quantry.scale.ranges import find_range
from quantry.scale.rounding import dequantize_array, fake_quantize, quantize_array
from quantry.scale.stage import scale
from quantry.scale.tensor_params import TensorParams
from quantry.scale.weights import constant_params

__all__ = [
    "BinnedValues",
    "ExactValues",
    "Grid",
    "Observed",
    "QuantParams",
    "Range",
    "TensorParams",
    "constant_params",
    "dequantize_array",
    "derived_bias_params",
    "fake_quantize",
    "find_range",
    "quantize_array",
    "scale",
]
