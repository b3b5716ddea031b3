"""The 8-bit floats of ONNX, E4M3FN and E5M2, in NumPy.

Both have a sign, an exponent and a mantissa; a tensor has a float32 scale and no zero point::

    quantize:    q = nearest 8-bit float of x / scale, half to even; beyond the largest finite value: that value
    dequantize:  x = float32(q) * scale

E4M3FN has 3 bits of mantissa, no infinities, and 448 as its largest value; E5M2 has 2 bits and 57344. The formats are
defined in https://arxiv.org/abs/2209.05433, the saturation in ONNX's Cast and QuantizeLinear (``saturate=1``).
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from quantry.recipe import DataType

CONTAINERS: dict[DataType, np.dtype[Any]] = {
    DataType.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DataType.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
}
"""NumPy types of the 8-bit floats."""


def to_float8(values: npt.NDArray[Any], dtype: DataType) -> npt.NDArray[Any]:
    """Return values rounded to an 8-bit float, half to even; those beyond its largest finite value saturate.

    Args:
        values: Values in units of the scale, any shape. Infinities saturate, NaN stays NaN.
        dtype: The 8-bit float.

    Example:
        >>> to_float8(np.array([0.3, 1000.0]), DataType.FLOAT8E4M3FN).astype(np.float32)
        array([  0.3125, 448.    ], dtype=float32)
    """
    # The clip comes first: a cast beyond the largest value gives NaN or infinity.
    return np.asarray(np.clip(values, dtype.lowest, dtype.highest), CONTAINERS[dtype])


def float8_levels(dtype: DataType) -> npt.NDArray[np.float64]:
    """Return all finite values of an 8-bit float, ascending, zero once."""
    codes = np.arange(256, dtype=np.uint8).view(CONTAINERS[dtype]).astype(np.float64)
    return np.unique(codes[np.isfinite(codes)])
