r"""From a range to scale and zero point.

::

    symmetric:   scale = max(|low|, |high|) / steps          zero_point = centre
    asymmetric:  scale = (high - low) / (highest - lowest)   zero_point = round_half_even(lowest - low / scale)

after the range was extended to hold zero. All in float64, the scale then rounded to float32 or to the nearest power
of two; the zero point stays that of the unrounded scale, so that a power of two clips both ends in proportion. A range
that was made from a power of two, as NonOverflow and MinMSE make theirs, comes back as exactly that power.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantry.scale.grid import Grid
from quantry.scale.range import Range

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_LARGEST_END = float(np.finfo(np.float32).max) / 2
_SMALLEST_EXPONENT = -126


@dataclass(frozen=True, eq=False)
class Affine:
    """Scales and zero points, one for each range they were made from.

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
        aligned = np.clip(np.rint(grid.lowest - low / scale), grid.lowest, grid.highest)
        zero_point = np.where(degenerate, 0, aligned).astype(np.int64)
    if grid.power_of_two:
        scale = nearest_power_of_two(scale, grid)
    return Affine(scale.astype(np.float32), zero_point)


def nearest_power_of_two(scale: npt.NDArray[np.float64], grid: Grid) -> npt.NDArray[np.float64]:
    """Return the powers of two nearest to positive scales on a logarithmic axis, within the allowed exponents.

    Args:
        scale: Positive scales of any shape.
        grid: The integers they go with.
    """
    exponent = np.rint(np.log2(scale))
    return np.asarray(np.exp2(np.clip(exponent, _SMALLEST_EXPONENT, largest_exponent(grid))))


def largest_exponent(grid: Grid) -> int:
    """Return the largest exponent of a power-of-two scale: the whole range then ends within half of float32's.

    Args:
        grid: The integers in use.
    """
    return 127 - (grid.highest - grid.lowest).bit_length()


def smallest_exponent() -> int:
    """Return the smallest exponent of a power-of-two scale that is a normal float32."""
    return _SMALLEST_EXPONENT
