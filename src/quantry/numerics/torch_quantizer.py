"""Quantization in torch, with gradients.

::

    forward     q = saturate(round_half_even(x / scale) + zero_point),   y = (q - zero_point) * scale

bit-equal to onnxruntime's QuantizeLinear and DequantizeLinear. The derivative by x is 1 inside the range and 0 where x
saturates. The derivative by the scale, where it is asked for, is that of Esser et al., "Learned step size quantization"
(https://arxiv.org/abs/1902.08153): ``round(x / s) - x / s`` inside, the saturated level outside; by log2 of the scale
it is that times ``s ln 2``, as in Jain et al., "Trained quantization thresholds" (https://arxiv.org/abs/1903.08066).

This module imports torch, so it is imported inside functions only.
"""

import enum
import math
from typing import Any

import torch


class Gradient(enum.Enum):
    """What besides the values gets a gradient."""

    STRAIGHT_THROUGH = "straight-through"
    LSQ = "lsq"
    TQT = "tqt"


def fake_quantize(
    values: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    limits: tuple[int, int],
    axis: int | None = None,
    gradient: Gradient = Gradient.STRAIGHT_THROUGH,
) -> torch.Tensor:
    """Return the values that are left after quantizing and dequantizing.

    Args:
        values: float32 of any shape.
        scale: float32, one number or one for each index along `axis`; positive.
        zero_point: Whole numbers, same shape as `scale`.
        limits: Smallest and largest integer.
        axis: The channel axis, or None for one scale.
        gradient: `LSQ` gives the scale a gradient too, divided by ``sqrt(elements of one scale x largest integer)``;
            `TQT` gives it the plain one.

    Returns:
        float32 of the shape of `values`.
    """
    scale, zero_point = _broadcast(scale, values, axis), _broadcast(zero_point, values, axis)
    if gradient is Gradient.STRAIGHT_THROUGH or not scale.requires_grad:
        return _FakeQuantize.apply(values, scale.detach(), zero_point, limits)
    weight = 1.0
    if gradient is Gradient.LSQ:
        weight = 1.0 / math.sqrt(max(1, values.numel() // scale.numel()) * max(1, limits[1]))
    return _LearnedFakeQuantize.apply(values, scale, zero_point, limits, weight)


def fake_quantize_log2(
    values: torch.Tensor,
    log2_scale: torch.Tensor,
    zero_point: torch.Tensor,
    limits: tuple[int, int],
    axis: int | None = None,
    *,
    power_of_two: bool = True,
) -> torch.Tensor:
    """Return `fake_quantize` with the scale given by its binary logarithm, which gets the gradient.

    Args:
        values: float32 of any shape.
        log2_scale: float32, one number or one for each index along `axis`.
        zero_point: Whole numbers, same shape as `log2_scale`.
        limits: Smallest and largest integer.
        axis: The channel axis, or None for one scale.
        power_of_two: Round the logarithm, so that the scale is a power of two; the gradient passes through.
    """
    exponent = log2_scale
    if power_of_two:
        exponent = log2_scale + (torch.round(log2_scale) - log2_scale).detach()
    return fake_quantize(values, torch.exp2(exponent), zero_point, limits, axis, Gradient.TQT)


def _broadcast(parameter: torch.Tensor, values: torch.Tensor, axis: int | None) -> torch.Tensor:
    if axis is None:
        return parameter.reshape(()) if parameter.numel() == 1 else parameter
    shape = [1] * values.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


class _FakeQuantize(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, limits: tuple[int, int]
    ) -> torch.Tensor:
        low, high = limits[0] - zero_point, limits[1] - zero_point
        levels = torch.round(values / scale)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward((levels >= low) & (levels <= high))
        return torch.clamp(levels, low, high).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (gradients[0] * ctx.saved_tensors[0] if ctx.needs_input_grad[0] else None), None, None, None


class _LearnedFakeQuantize(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        limits: tuple[int, int],
        weight: float,
    ) -> torch.Tensor:
        low, high = limits[0] - zero_point, limits[1] - zero_point
        exact = values / scale
        levels = torch.round(exact)
        inside = (levels >= low) & (levels <= high)
        kept = torch.clamp(levels, low, high)
        # By the scale: the rounding error inside, the saturated level outside.
        ctx.save_for_backward(inside, torch.where(inside, kept - exact, kept), scale)
        ctx.weight = weight
        return kept * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        inside, by_scale, scale = ctx.saved_tensors
        scaled = (gradients[0] * by_scale).sum_to_size(scale.shape) * ctx.weight
        return gradients[0] * inside, scaled, None, None, None


def fake_quantize_bias(bias: torch.Tensor, scale: torch.Tensor, limits: tuple[int, int]) -> torch.Tensor:
    """Return a bias rounded to 32-bit integers at a scale, as the deployed model rounds it.

    The division is done in float64, in which 32-bit integers are exact; float32 would lose their last bits.

    Args:
        bias: float32, one number per channel.
        scale: float32, one number or one per channel.
        limits: Smallest and largest integer.

    Returns:
        float32 of the shape of `bias`. The gradient passes straight through the rounding and stops where it saturates.
    """
    with torch.no_grad():
        levels = torch.round(bias.double() / scale.double())
        inside = (levels >= limits[0]) & (levels <= limits[1])
        rounded = levels.clamp(*limits).float() * scale
    # Adding a difference that is exactly zero attaches the gradient without changing the rounded values.
    return rounded + (bias - bias.detach()) * inside
