"""From the extremes of a tensor to its scale, in torch, for observers that run while a model trains.

The same formulas as ``quantry.numerics.affine``, which a test compares them with; those of calibration run on the
statistics of the whole data and are not repeated here.
"""

import torch
from torch import Tensor

from quantry.numerics.grid import Grid
from quantry.recipe import PowerOfTwoScale, TensorSpec

_SMALLEST = torch.finfo(torch.float32).tiny


def scale_of(extremes: Tensor, spec: TensorSpec, limits: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return scale and zero point.

    Args:
        extremes: float32 [2] or [2, channels]: smallest and largest value.
        spec: Symmetry and kind of scale.
        limits: Smallest and largest integer.

    Returns:
        float32 scale and int32 zero point, one number or [channels].
    """
    low, high = extremes[0].double().clamp(max=0), extremes[1].double().clamp(min=0)
    lowest, highest = limits
    centre = Grid.of(spec).centre
    steps = min(centre - lowest, highest - centre) if spec.symmetric else highest - lowest
    span = torch.maximum(-low, high) if spec.symmetric else high - low
    flat = span / steps < _SMALLEST
    scale = torch.where(flat, 1.0, span / steps)
    zero_point = torch.full_like(scale, centre)
    if not spec.symmetric:
        zero_point = torch.where(flat, 0.0, torch.round(lowest - low / scale).clamp(lowest, highest))
    if isinstance(spec.scale, PowerOfTwoScale):
        scale = torch.exp2(torch.round(torch.log2(scale)).clamp(-126, 127 - (highest - lowest).bit_length()))
    return scale.float(), zero_point.int()
