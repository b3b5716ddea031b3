"""Compute scale and zero point from a range.

::

    symmetric:   scale = max(|low|, |high|) / steps          zero_point = centre
    asymmetric:  scale = (high - low) / (highest - lowest)   zero_point = round_half_even(lowest - low / scale)

after the range has been extended to include zero. Everything is computed in float64; the scale is then rounded to
float32 or to the nearest power of two. The zero point is the one of the unrounded scale, so that a power-of-two scale
clips both ends in proportion. A range made from a power of two, as by NonOverflow and MinMSE, gives exactly that power.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantry.numerics.grid import Grid, Range
from quantry.numerics.power_of_two import nearest_power_of_two
from quantry.numerics.rounding import round_and_clip

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
# With both ends at most this large, high - low is still finite in float32.
_LARGEST_END = float(np.finfo(np.float32).max) / 2


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
    interval = interval.with_zero()
    low = np.maximum(interval.low, -_LARGEST_END)
    high = np.minimum(interval.high, _LARGEST_END)
    span = np.maximum(-low, high) if grid.symmetric else high - low
    scale = span / grid.steps
    degenerate = scale < _SMALLEST_NORMAL
    scale = np.where(degenerate, 1.0, scale)
    zero_point = np.full(scale.shape, grid.centre, np.int64)
    if not grid.symmetric:
        aligned = round_and_clip(grid.lowest - low / scale, grid.lowest, grid.highest)
        zero_point = np.where(degenerate, 0, aligned).astype(np.int64)
    if grid.power_of_two:
        scale = nearest_power_of_two(scale, grid)
    return Affine(scale.astype(np.float32), zero_point)
