"""Round real values to integers and back, exactly as onnxruntime's QuantizeLinear and DequantizeLinear do.

::

    quantize:    q = clip(round_half_even(x / scale) + zero_point)          division in float32
    dequantize:  x = float32(q - zero_point) * scale                        product in float32

QuantizeLinear has no 32-bit types; for these (biases) the division is done in float64, where 32-bit integers are exact.
8-bit floats round to their own levels, which lie closer together near zero, and have no zero point (`float8`).

`round_and_clip` is the only NumPy code that rounds values to quantization levels.
`quantry.numerics.torch_quantizer` is its differentiable counterpart.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from quantry.errors import DataError
from quantry.numerics import float8
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType

Number = TypeVar("Number", np.float32, np.int64)
Real = TypeVar("Real", np.float32, np.float64)

_CONTAINERS: dict[DataType, Any] = {
    DataType.INT4: np.int8,
    DataType.UINT4: np.uint8,
    DataType.INT8: np.int8,
    DataType.UINT8: np.uint8,
    DataType.INT16: np.int16,
    DataType.UINT16: np.uint16,
    DataType.INT32: np.int32,
    DataType.UINT32: np.uint32,
    **float8.CONTAINERS,
}


def round_and_clip(
    steps: npt.NDArray[Real], lowest: npt.ArrayLike, highest: npt.ArrayLike, out: npt.NDArray[Real] | None = None
) -> npt.NDArray[Real]:
    """Return values in units of the scale, rounded half to even and clipped.

    The zero point is added afterwards, so that float32 can represent every intermediate result.

    Args:
        steps: Real values divided by their scale, any shape; infinities are clipped, NaN stays NaN.
        lowest: Smallest integer minus the zero point, broadcastable to `steps`.
        highest: Largest integer minus the zero point, broadcastable to `steps`.
        out: Array for the result; None allocates one.

    Returns:
        Whole numbers of the type and shape of `steps`.
    """
    return np.asarray(np.clip(np.rint(steps, out=out), lowest, highest, out=out))  # type: ignore[arg-type]  # numpy accepts None


def round_to_levels(
    steps: npt.NDArray[Real],
    dtype: DataType,
    lowest: npt.ArrayLike,
    highest: npt.ArrayLike,
    out: npt.NDArray[Real] | None = None,
) -> npt.NDArray[Real]:
    """Return values in units of the scale, rounded to the nearest level of a type and clipped.

    Args:
        steps: Real values divided by their scale, any shape.
        dtype: An integer type or an 8-bit float.
        lowest: Smallest level minus the zero point, broadcastable to `steps`.
        highest: Largest level minus the zero point, broadcastable to `steps`.
        out: Array for the result; None allocates one.
    """
    if not dtype.is_float8:
        return round_and_clip(steps, lowest, highest, out)
    rounded = float8.to_float8(steps, dtype).astype(steps.dtype)
    if out is None:
        return rounded
    out[...] = rounded
    return out


def quantize_array(x: npt.ArrayLike, params: TensorParams) -> npt.NDArray[Any]:
    """Return the integers, or the 8-bit floats, of real values, rounded half to even and clipped.

    Args:
        x: Real values of any shape; infinities become the smallest or largest level.
        params: Scale, zero point and type.

    Returns:
        Levels of the shape of `x` in the smallest NumPy type that holds them; 4-bit values take one byte each.

    Raises:
        DataError: `x` contains NaN.

    Example:
        >>> import numpy as np
        >>> from quantry.recipe import DataType
        >>> params = TensorParams(DataType.INT8, np.float32(0.5), np.int64(0))
        >>> quantize_array(np.array([0.25, 0.75, -1000], np.float32), params)
        array([   0,    2, -128], dtype=int8)
    """
    precision = np.float64 if params.dtype.bits > 16 else np.float32
    values = np.asarray(x, dtype=np.float32)
    if np.isnan(values).any():
        raise DataError(f"values to quantize must not be NaN, got {int(np.isnan(values).sum())} of {values.size}")
    scale, zero_point = _broadcast(params, values.shape)
    with np.errstate(over="ignore"):
        steps = np.divide(values, scale, dtype=precision)
    offset = zero_point.astype(precision)
    levels = round_to_levels(steps, params.dtype, params.lowest - offset, params.highest - offset)
    return np.asarray(levels + offset).astype(_CONTAINERS[params.dtype])


def dequantize_array(q: npt.ArrayLike, params: TensorParams) -> npt.NDArray[np.float32]:
    """Return the real values of integers or 8-bit floats.

    Args:
        q: Levels of any shape.
        params: Scale, zero point and type.

    Returns:
        float32 values of the shape of `q`.
    """
    if params.dtype.is_float8:
        floats = np.asarray(q).astype(np.float32)
        return np.asarray(floats * _broadcast(params, floats.shape)[0], dtype=np.float32)
    integers = np.asarray(q).astype(np.int64)
    scale, zero_point = _broadcast(params, integers.shape)
    return np.asarray((integers - zero_point).astype(np.float32) * scale, dtype=np.float32)


def fake_quantize(x: npt.ArrayLike, params: TensorParams) -> npt.NDArray[np.float32]:
    """Return `x` quantized and dequantized.

    Args:
        x: Real values of any shape.
        params: Scale, zero point and type.

    Returns:
        float32 values of the shape of `x`, all levels times the scale.
    """
    return dequantize_array(quantize_array(x, params), params)


def _broadcast(params: TensorParams, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return scale and zero point in a shape that broadcasts to the shape of the values."""
    if params.axis is None:
        return params.scale, params.zero_point
    if params.group is not None:
        return _spread(params.scale, params, shape), _spread(params.zero_point, params, shape)
    ones = [1] * len(shape)
    ones[params.axis] = -1
    return params.scale.reshape(ones), params.zero_point.reshape(ones)


def _spread(entries: npt.NDArray[Number], params: TensorParams, shape: tuple[int, ...]) -> npt.NDArray[Number]:
    assert params.axis is not None
    assert params.group is not None
    index = np.arange(shape[params.axis]) // params.group
    return np.take(entries, index, axis=params.axis)
