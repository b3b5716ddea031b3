"""Compute scale and zero point from a range.

::

    symmetric:   scale = max(|low|, |high|) / steps          zero_point = centre
    asymmetric:  scale = (high - low) / (highest - lowest)   zero_point = round_half_even(lowest - low / scale)

after the range has been extended to include zero. Everything is computed in float64; the scale is then rounded to
float32 or to the nearest power of two. The zero point is the one of the unrounded scale, so that a power-of-two scale
clips both ends in proportion. A range made from a power of two, as by NonOverflow and MinMSE, gives exactly that power.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.numerics.grid import Grid, Range
from quantry.numerics.power_of_two import SMALLEST_EXPONENT, largest_exponent

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
LARGEST_END = float(np.finfo(np.float32).max) / 2
"""With both ends at most this large, high - low is still finite in float32."""


@dataclass(frozen=True, eq=False)
class Affine:
    """Scales and zero points, one for each range they were computed from.

    Attributes:
        scale: float32, positive and normal.
        zero_point: int64 of the same shape.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]


def affine(interval: Range, grid: Grid) -> Affine:
    """Return scale and zero point of each range.

    Ranges too narrow for a normal float32 scale, such as those of all-zero tensors, get scale 1. Ends beyond half of
    float32's largest value are moved there, so that no scale is infinite.

    Args:
        interval: Ends of any shape.
        grid: The integers to map to.
    """
    scale, zero_point = scale_and_zero_point(interval.low, interval.high, grid)
    return Affine(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64))


def scale_and_zero_point(low: Any, high: Any, grid: Grid, arrays: Any = np) -> tuple[Any, Any]:
    """Return scale and zero point in the arrays' own library; `affine` is the typed version for NumPy.

    Observers call it with tensors while a model trains: a conversion to NumPy would wait for the GPU at every step.

    Args:
        low: Lower ends, float64.
        high: Upper ends, float64 of the same shape.
        grid: The integers to map to.
        arrays: The library of the ends: ``numpy`` or ``torch``.

    Returns:
        Scales and zero points, float64 of the same shape.
    """
    low, high = arrays.clip(low, -LARGEST_END, 0.0), arrays.clip(high, 0.0, LARGEST_END)
    span = arrays.maximum(-low, high) if grid.symmetric else high - low
    scale = span / grid.steps
    degenerate = scale < _SMALLEST_NORMAL
    scale = arrays.where(degenerate, 1.0, scale)
    zero_point = arrays.full_like(scale, grid.centre)
    if not grid.symmetric:
        aligned = arrays.clip(arrays.round(grid.lowest - low / scale), grid.lowest, grid.highest)
        zero_point = arrays.where(degenerate, 0.0, aligned)
    if grid.power_of_two:
        exponent = arrays.round(arrays.log2(scale))
        scale = arrays.exp2(arrays.clip(exponent, SMALLEST_EXPONENT, largest_exponent(grid)))
    return scale, zero_point
