"""Fake quantization in torch: the one differentiable version of ``quantry.numerics.rounding``.

::

    forward             q = saturate(round_half_even(x / s) + zero_point),   y = (q - zero_point) * s
    gradient of x       1 inside the range, 0 where x saturates (straight-through estimator)
    gradient of s       q - zero_point - x / s inside the range, the saturated level outside
    gradient of log2 s  s * ln 2 * (gradient of s)

The forward pass gives the same bits as onnxruntime's QuantizeLinear and DequantizeLinear. The gradient of the scale is
that of Esser et al., "Learned step size quantization" (https://arxiv.org/abs/1902.08153); learning the logarithm is
due to Jain et al., "Trained quantization thresholds" (https://arxiv.org/abs/1903.08066).

`fake_quantize` selects an implementation. The plain torch operations in this file are the reference. For tensors with
one scale, ``torch_kernels`` (C, float32 on a CPU) and ``triton_kernels`` (GPU) compute the same in one pass.

This module imports torch, so import it inside functions only.
"""

import enum
import functools
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from quantry.numerics import torch_kernels
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType

FLOAT_TYPES = {DataType.FLOAT16: torch.float16, DataType.BFLOAT16: torch.bfloat16}
"""Narrow float types and their torch names."""

_FLOAT8 = {DataType.FLOAT8E4M3FN: torch.float8_e4m3fn, DataType.FLOAT8E5M2: torch.float8_e5m2}


class Gradient(enum.Enum):
    """What gets a gradient in addition to the values.

    Attributes:
        STRAIGHT_THROUGH: Nothing; the scale is fixed.
        LSQ: The scale. Its gradient is divided by ``sqrt(values per scale * largest integer)``, as in the paper, so
            that scales and weights can share a learning rate.
        TQT: The binary logarithm of a power-of-two scale. It is rounded; the gradient passes through the rounding.
        LOG2: The binary logarithm of any scale.
    """

    STRAIGHT_THROUGH = "straight-through"
    LSQ = "lsq"
    TQT = "tqt"
    LOG2 = "log2"


def fake_quantize(
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    limits: tuple[int, int],
    axis: int | None = None,
    gradient: Gradient = Gradient.STRAIGHT_THROUGH,
) -> Tensor:
    """Quantize and dequantize.

    Args:
        values: Floats of any shape. Narrow types are computed in float32.
        scale: float32, positive: one number of shape (), one per index along `axis`, or of a shape that broadcasts to
            that of `values`. For `Gradient.TQT` and `Gradient.LOG2`, its binary logarithm.
        zero_point: Whole numbers of the shape of `scale`.
        limits: Smallest and largest integer.
        axis: The channel axis; None for one scale or scales that broadcast.
        gradient: What gets a gradient.

    Returns:
        A tensor of the shape and type of `values`. NaN stays NaN.

    Example:
        >>> fake_quantize(torch.tensor([0.3, 9.0]), torch.tensor(0.5), torch.tensor(0), (-8, 7))
        tensor([0.5000, 3.5000])
    """
    if gradient is Gradient.LOG2:
        scale = torch.exp2(scale)
    learned, log2 = gradient is not Gradient.STRAIGHT_THROUGH and scale.requires_grad, gradient is Gradient.TQT
    weight = 1.0
    if gradient is Gradient.LSQ:
        weight = 1.0 / math.sqrt(max(1, values.numel() // scale.numel()) * max(1, limits[1]))
    kernels = _kernels(values) if scale.dim() == 0 else None
    if kernels is not None:
        if not learned:
            return kernels.fixed_scale(values, torch.exp2(torch.round(scale)) if log2 else scale, zero_point, limits)
        return kernels.learned_scale(values, scale, zero_point, limits, None if log2 else weight)
    if log2:
        scale = torch.exp2(scale + (torch.round(scale) - scale).detach())
    scale, zero_point = _broadcast(scale, values, axis), _broadcast(zero_point, values, axis)
    wide = values.float()
    if learned:
        result: Tensor = _LearnedScale.apply(wide, scale, zero_point, limits, weight)
    else:
        result = _FixedScale.apply(wide, scale.detach(), zero_point, limits)
    return result.to(values.dtype)


def fake_quantize_float8(
    values: Tensor, scale: Tensor, dtype: DataType, axis: int | None = None, *, log2: bool = False
) -> Tensor:
    """Quantize to an 8-bit float and dequantize, as ``quantry.numerics.float8`` does.

    The values get the gradient 1 inside the range and 0 where they saturate; the scale gets that of `Gradient.LOG2`.

    Args:
        values: Floats of any shape.
        scale: float32, positive, of shape () or one per index along `axis`; its binary logarithm if `log2`.
        dtype: The 8-bit float.
        axis: The channel axis; None for one scale.
        log2: Whether `scale` is a logarithm.
    """
    scale = _broadcast(torch.exp2(scale) if log2 else scale, values, axis)
    exact = torch.clamp(values.float() / scale, dtype.lowest, dtype.highest)
    rounded: Tensor = _PassGradient.apply(exact, exact.detach().to(_FLOAT8[dtype]).float())
    return (rounded * scale).to(values.dtype)


def fake_quantize_as(values: Tensor, params: TensorParams) -> Tensor:
    """Quantize and dequantize with given parameters, of integers or of 8-bit floats.

    Args:
        values: Floats of any shape.
        params: Type, scale and zero point: one scale, or one per index along an axis.
    """
    scale, zero_point = (torch.tensor(array, device=values.device) for array in (params.scale, params.zero_point))
    if params.dtype.is_float8:
        return fake_quantize_float8(values, scale, params.dtype, params.axis)
    return fake_quantize(values, scale, zero_point.float(), (params.lowest, params.highest), params.axis)


def derived_bias_scale(source_scale: Tensor, weight_scale: Tensor) -> Tensor:
    """Return the scale of a derived bias, float32: input scale x weight scale, as ``derived_bias_params`` computes it.

    Args:
        source_scale: float32, one number: the scale of the operator's input.
        weight_scale: float32, one number or one per channel.
    """
    info = torch.finfo(torch.float32)
    return (source_scale.detach().double() * weight_scale.detach().double()).clamp(info.tiny, info.max).float()


def fake_quantize_bias(bias: Tensor, scale: Tensor, limits: tuple[int, int]) -> Tensor:
    """Quantize and dequantize a bias with zero point 0, as the deployed model does.

    The division is done in float64, in which 32-bit integers are exact; float32 would lose their last bits.

    Args:
        bias: float32, one number per channel.
        scale: float32, one number or one per channel.
        limits: Smallest and largest integer.

    Returns:
        float32 of the shape of `bias`. The gradient of the bias is 1 inside the range and 0 where it saturates.
    """
    with torch.no_grad():
        levels = torch.round(bias.double() / scale.double())
        inside = (levels >= limits[0]) & (levels <= limits[1])
        rounded = levels.clamp(*limits).float() * scale
    # Adding a difference that is exactly zero attaches the gradient without changing the rounded values.
    return rounded + (bias - bias.detach()) * inside


def round_to_float(values: Tensor, dtype: DataType) -> Tensor:
    """Round values to float16 or bfloat16 and return them in their own type; the gradient is 1.

    Args:
        values: Floats of any shape.
        dtype: The narrow type.
    """
    # Without this, the gradient of the cast would be rounded to the narrow type as well.
    result: Tensor = _PassGradient.apply(values, values.detach().to(FLOAT_TYPES[dtype]).to(values.dtype))
    return result


def _kernels(values: Tensor) -> ModuleType | None:
    """Return the module whose kernels can quantize a tensor with one scale, or None."""
    if torch_kernels.can_read(values):
        return torch_kernels
    if values.is_cuda and not torch.compiler.is_compiling():  # the compiler fuses plain operations itself
        kernels = _triton_kernels()
        return kernels if kernels is not None and values.dtype in kernels.TYPES else None
    return None


@functools.cache  # Python retries a failed import, which would cost time in every forward pass.
def _triton_kernels() -> ModuleType | None:
    try:
        from quantry.numerics import triton_kernels
    except ImportError:  # torch installs Triton on Linux only
        return None
    return triton_kernels


def _broadcast(parameter: Tensor, values: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        return parameter
    shape = [1] * values.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


class _FixedScale(torch.autograd.Function):  # type: ignore[misc]
    # With `setup_context` and a generated rule, torch.func can transform the operation.
    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> Tensor:
        return _rounded(values / scale, zero_point, limits)[0].mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        *tensors, ctx.limits = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        # Only the values are saved, which other operations save anyway. Rounding them again costs less than memory.
        values, scale, zero_point = ctx.saved_tensors
        with torch.no_grad():
            inside = _rounded(values / scale, zero_point, ctx.limits)[1]
        return gradients[0] * inside, None, None, None


class _LearnedScale(torch.autograd.Function):  # type: ignore[misc]
    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int], _weight: float) -> Tensor:
        return _rounded(values / scale, zero_point, limits)[0].mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        *tensors, ctx.limits, ctx.weight = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        values, scale, zero_point = ctx.saved_tensors
        with torch.no_grad():
            exact = values / scale
            levels, inside = _rounded(exact, zero_point, ctx.limits)
            slope = torch.where(inside, levels - exact, levels)
        by_scale = (gradients[0] * slope).sum_to_size(scale.shape) * ctx.weight
        return gradients[0] * inside, by_scale, None, None, None


def round_and_clip(exact: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Return values rounded half to even and clipped, as ``quantry.numerics.rounding.round_and_clip`` does in NumPy."""
    return torch.clamp(torch.round(exact), low, high)


def _rounded(exact: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the levels of values divided by their scale, and which values did not saturate."""
    # The zero point is subtracted from the limits instead of added to the levels: float32 then never has to hold more
    # digits than it has, and the result needs no second subtraction.
    low, high = limits[0] - zero_point, limits[1] - zero_point
    levels = torch.round(exact)
    return torch.clamp(levels, low, high), (levels >= low) & (levels <= high)


class _PassGradient(torch.autograd.Function):  # type: ignore[misc]
    """Returns the second tensor and gives its gradient to the first, also for infinities."""

    generate_vmap_rule = True

    @staticmethod
    def forward(_values: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def setup_context(_ctx: Any, _inputs: tuple[Any, ...], _output: Tensor) -> None:
        pass

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None
