"""Quantization with a power-of-two scale that learns, cheap in time and memory.

::

    y = clip(round(x / s) , low, high) s,   s = 2 ** round(t)
    dL/dx = m dL/dy                          m is 1 inside the range and 0 where x saturates
    dL/dt = ln 2 <dL/dy, y - m x>            since s dy/ds is y - x inside and y outside

Of all that is computed only x is kept, and nothing is read back from the device. The numbers are those of
``quantry.numerics.torch_quantizer.fake_quantize_log2``, with which a test compares them.
"""

import math
from typing import Any

import torch
from torch import Tensor


def fake_quantize_power_of_two(
    values: Tensor, log2_scale: Tensor, zero_point: Tensor, limits: tuple[int, int]
) -> Tensor:
    """Quantize and dequantize with one learned scale.

    Args:
        values: Floats of any shape and width; the result has the same.
        log2_scale: float32, one number; rounded, with the gradient passed through.
        zero_point: int32, one number.
        limits: Smallest and largest integer.
    """
    result: Tensor = _LearnedScale.apply(values, log2_scale, zero_point, limits)
    return result


class _LearnedScale(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, values: Tensor, log2_scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> Tensor:
        scale = torch.exp2(torch.round(log2_scale))
        result, _ = _with_mask(values, scale, zero_point, limits)
        ctx.save_for_backward(values, scale, zero_point)
        ctx.limits = limits
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        values, scale, zero_point = ctx.saved_tensors
        gradient = gradients[0]
        # Quantizing again costs less than keeping what it gave.
        result, inside = _with_mask(values, scale, zero_point, ctx.limits)
        by_scale = torch.where(inside, result - values, result)
        moved = torch.dot(gradient.reshape(-1).float(), by_scale.reshape(-1).float())
        return gradient * inside, moved * math.log(2.0), None, None


def _with_mask(values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the quantized values, and which of them lay inside the range."""
    enabled = torch.ones(1, dtype=torch.int64, device=values.device)
    result, inside = torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        values, scale, zero_point, enabled, limits[0], limits[1]
    )
    return result, inside
