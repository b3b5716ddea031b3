"""Power-of-two scales as positions: the number of fraction bits of fixed-point numbers."""

import dataclasses
import math

import numpy as np

from quantry.scale.tensor_params import TensorParams


def position_of(scale: float) -> int | None:
    """Return p for a scale of ``2**-p``, or None for any other.

    Args:
        scale: Any number.

    Example:
        >>> position_of(0.125)
        3
    """
    mantissa, exponent = math.frexp(scale)
    return 1 - exponent if mantissa == 0.5 else None


def at_position(params: TensorParams, position: int) -> TensorParams:
    """Return the parameters with scale ``2**-position``; the zero point is that of the type's centre and stays.

    Args:
        params: Parameters with one scale.
        position: The new position.
    """
    return dataclasses.replace(params, scale=np.array(math.ldexp(1.0, -position), np.float32))
