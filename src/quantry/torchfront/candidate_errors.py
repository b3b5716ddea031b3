"""What errors of rounding cost with each of several scales, channel by channel.

::

    cost[k, c] = sum over channel c of ((clip(round(x / s), low, high) s - x) g) ** 2,   s = scales[k, c]

In C for float32 on a CPU where there is a compiler: ``candidate_errors.c`` reads a tensor once for all candidates.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantry.numerics import kernels
from quantry.numerics.torch_kernels import can_read, run_in_torch_threads
from quantry.torchfront.fake_quantizer import FakeQuantizer

_MANY = 1 << 15
"""From so many values times candidates on threads share them."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Scales to choose from.

    Attributes:
        scales: float32, [candidates, 1] or [candidates, channels].
        low: Smallest level, zero point taken off; float32, [1] or [channels].
        high: Largest level, likewise.
    """

    scales: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, quantizer: FakeQuantizer, factors: npt.NDArray[np.floating[Any]]) -> "Candidates":
        """Return the scales of a quantizer times each of some factors."""
        scale, zero = quantizer.scale.reshape(-1), quantizer.zero_point.reshape(-1)
        low, high = (limit - zero.to(scale.dtype) for limit in quantizer.limits)
        return cls(torch.as_tensor(factors, dtype=scale.dtype, device=scale.device)[:, None] * scale, low, high)


def candidate_errors(values: Tensor, gradient: Tensor, candidates: Candidates, axis: int | None) -> Tensor:
    """Return what errors of some values cost with each candidate, float64, [candidates, channels] on the CPU.

    Args:
        values: Floats of any shape.
        gradient: What an error of each of them costs, of the same shape.
        candidates: The scales.
        axis: The axis of channels; None is one channel.
    """
    values, gradient = values.detach(), gradient.detach()
    compiled = kernels.loaded()
    if can_read(values) and can_read(gradient) and compiled is not None:
        return _computed_in_c(compiled, values, gradient, candidates, axis)
    shape = [1] * values.dim() if axis is None else [-1 if place == axis else 1 for place in range(values.dim())]
    others = [place for place in range(values.dim()) if place != axis]
    low, high = candidates.low.reshape(shape), candidates.high.reshape(shape)
    costs = []
    for scales in candidates.scales:
        scale = scales.reshape(shape)
        error = torch.clamp(torch.round(values / scale), low, high).mul_(scale).sub_(values).mul_(gradient)
        squares = error.square_()
        costs.append((squares.sum(others) if others else squares).double().cpu().reshape(-1))
    return torch.stack(costs)


def _computed_in_c(
    compiled: kernels.Kernels, values: Tensor, gradient: Tensor, candidates: Candidates, axis: int | None
) -> Tensor:
    shape = values.shape
    if axis is None:
        # One channel has no parts for threads; what its first axes number are added up afterwards.
        outer, channels = 1, math.prod(shape[:2])
    else:
        outer, channels = math.prod(shape[:axis]), shape[axis]
    values, gradient = values.contiguous(), gradient.contiguous()
    count = len(candidates.scales)
    scales = candidates.scales.expand(count, channels).contiguous()
    low, high = (bound.expand(channels).contiguous() for bound in (candidates.low, candidates.high))
    sums = torch.zeros(count, channels, dtype=torch.float64)
    pointers = (tensor.data_ptr() for tensor in (values, gradient, scales, low, high, sums))
    task = kernels.ErrorTask(*pointers, outer, channels, math.prod(shape) // max(1, outer * channels), count, 0)
    run_in_torch_threads(compiled.add_errors, task, alone=channels == 1 or values.numel() * count < _MANY)
    return sums.sum(1, keepdim=True) if axis is None else sums
