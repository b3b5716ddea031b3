"""Parameters of biases, which are added to int32 accumulators: scale = input scale x weight scale."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantry.notes import Note
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType

_SMALLEST_NORMAL = np.finfo(np.float32).tiny
_LARGEST = np.finfo(np.float32).max
# Half of int32: the sum of products is added to the bias in the same accumulator.
_LARGEST_BIAS = 2.0**30


def derived_bias_params(source: TensorParams, weight: TensorParams) -> TensorParams:
    """Return int32 parameters with scale = input scale x weight scale and zero point 0.

    The product is computed in float64, rounded to float32 once, and limited to normal float32 numbers.

    Args:
        source: Parameters of the operator's input, one scale.
        weight: Parameters of its weight, one scale or one for each output channel.

    Example:
        >>> half = TensorParams(DataType.INT8, np.float32(0.5), np.int64(0))
        >>> derived_bias_params(half, half).scale
        array(0.25, dtype=float32)
    """
    product = source.scale.astype(np.float64) * weight.scale.astype(np.float64)
    scale = np.clip(product, _SMALLEST_NORMAL, _LARGEST).astype(np.float32)
    axis = None if weight.axis is None else 0
    return TensorParams(DataType.INT32, scale, np.zeros(scale.shape, np.int64), axis)


def with_room_for_bias(
    values: npt.NDArray[np.float32], source: TensorParams, weight: TensorParams, power_of_two: bool
) -> TensorParams:
    """Return weight parameters coarse enough for the bias to fit its integers.

    A channel that training has almost switched off has tiny weights and an ordinary bias. With the scale of its own
    weights that bias overflows int32; a coarser scale for these weights, which hardly matter, preserves it.

    Args:
        values: The values of the bias, [C].
        source: Parameters of the operator's input, one scale.
        weight: Parameters of its weight, one scale or [C].
        power_of_two: Whether the scale must stay a power of two.

    Returns:
        The same parameters if the bias fits.
    """
    magnitude = np.abs(values.astype(np.float64))
    needed = (magnitude if weight.axis is not None else magnitude.max(initial=0.0)) / (
        source.scale.astype(np.float64) * _LARGEST_BIAS
    )
    weight_scale = weight.scale.astype(np.float64)
    if (needed <= weight_scale).all():
        return weight
    if power_of_two:
        needed = np.exp2(np.ceil(np.log2(np.maximum(needed, _SMALLEST_NORMAL))))
    return replace(weight, scale=np.maximum(weight_scale, np.minimum(needed, _LARGEST)).astype(np.float32))


def overflow_note(values: npt.NDArray[np.float32], name: str, params: TensorParams) -> tuple[Note, ...]:
    """Return a note if values of a bias do not fit its integers; empty if all do.

    Args:
        values: The values of the bias, [C].
        name: Its name.
        params: Its parameters.
    """
    integers = np.rint(values.astype(np.float64) / params.scale)
    beyond = np.abs(integers) > params.highest
    if not beyond.any():
        return ()
    lost = np.abs(values.astype(np.float64)) - params.highest * params.scale.astype(np.float64)
    note = Note.of(
        "bias {name!r}: {count} of {size} values are too large for {dtype} at input scale x weight scale and are "
        "clipped, by up to {loss:.6g}",
        name=name,
        count=int(beyond.sum()),
        size=values.size,
        dtype=params.dtype.value,
        loss=float(lost.max()),
    )
    return (note,)
