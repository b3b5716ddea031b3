"""Fake quantization with one scale on a GPU: one Triton kernel per direction.

Importing this module needs Triton. For the backward pass only one byte per value is saved: the gradient of the scale,
``round(x / s) - x / s``, in steps of 1/252, and two more codes for values that saturate below and above. The sum over a
tensor averages the rounding of these codes out; results and the gradient of the values have the bits of the reference
in ``torch_quantizer``.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantry.numerics.torch_kernels import in_order_of

TYPES = (torch.float32, torch.bfloat16, torch.float16)

_BLOCK = 4096


def fixed_scale(values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> Tensor:
    """Quantize and dequantize; see `quantry.numerics.torch_quantizer.fake_quantize`.

    Args:
        values: Floats of one of `TYPES` on a GPU.
        scale: float32, one number.
        zero_point: A whole number.
        limits: Smallest and largest integer.
    """
    return learned_scale(values, scale.detach(), zero_point, limits, 1.0)


def learned_scale(
    values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
) -> Tensor:
    """Quantize and dequantize with a scale that gets a gradient.

    Args:
        values: Floats of one of `TYPES` on a GPU.
        parameter: float32, one number: the scale, or its binary logarithm if `weight` is None, which is rounded.
        zero_point: A whole number.
        limits: Smallest and largest integer.
        weight: Multiplies the gradient of the scale; None gives the logarithm the gradient.
    """
    result: Tensor = _FakeQuantize.apply(values, parameter, zero_point, limits, weight)
    return result


class _FakeQuantize(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
    ) -> Tensor:
        results, codes = torch.empty_like(values), torch.empty_like(values, dtype=torch.int8)
        values = in_order_of(values, results)
        count, log2 = values.numel(), weight is None
        with _on_device(values):
            quantize_kernel[(_blocks(count),)](
                values, results, codes, parameter, zero_point, count, *limits, log2, _BLOCK
            )
        ctx.save_for_backward(codes, parameter, zero_point)
        ctx.limits, ctx.weight = limits, weight
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        codes, parameter, zero_point = ctx.saved_tensors
        by_values, count = torch.empty_like(codes, dtype=gradients[0].dtype), codes.numel()
        gradient, codes = in_order_of(gradients[0], by_values), in_order_of(codes, by_values)
        block_sums = torch.empty(_blocks(count), dtype=torch.float32, device=codes.device)
        weight, log2 = 1.0 if ctx.weight is None else ctx.weight, ctx.weight is None
        with _on_device(codes):
            gradient_kernel[(_blocks(count),)](
                gradient, codes, by_values, block_sums, weight, parameter, zero_point, count, *ctx.limits, log2, _BLOCK
            )
        if not ctx.needs_input_grad[1]:
            return by_values, None, None, None, None
        # A second kernel adds the blocks up. Atomic additions would give other bits on every run.
        by_scale = block_sums if block_sums.numel() == 1 else block_sums.sum()
        return by_values, by_scale.reshape(parameter.shape), None, None, None


def _blocks(count: int) -> int:
    return max(1, -(-count // _BLOCK))


def _on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    # Triton launches on the current device. Switching costs as much as a launch, so do it only if needed.
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return nullcontext()
    switched: AbstractContextManager[Any] = torch.cuda.device_of(tensor)
    return switched


# The kernels contain literal numbers because Triton compares global constants at every launch.


@triton.jit
def rounded(x):  # type: ignore[no-untyped-def]
    """Round half to even: adding 2 ** 23 leaves no bits for a fraction, and larger numbers have none."""
    shift = tl.where(x < 0, -8388608.0, 8388608.0)
    return tl.where(tl.abs(x) < 8388608.0, (x + shift) - shift, x)


@triton.jit  # type: ignore[untyped-decorator]
def scale_and_steps(x, parameter, log2: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the scale and the values divided by it."""
    stored = tl.load(parameter)
    if log2:
        # Build the powers of two from their exponents: exact, and so is the product with the reciprocal. The GPU's
        # exp2 is an approximation.
        exponent = tl.minimum(tl.maximum(rounded(stored), -126.0), 126.0).to(tl.int32)
        scale = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
        steps = x * ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    else:
        scale = stored
        steps = tl.div_rn(x, tl.zeros_like(x) + stored)  # x / stored would not be rounded correctly
    return scale, steps


@triton.jit  # type: ignore[untyped-decorator]
def quantize_kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    values,
    results,
    codes,
    parameter,
    zero_point,
    count,
    low: tl.constexpr,
    high: tl.constexpr,
    log2: tl.constexpr,
    block: tl.constexpr,
):
    """Write the quantized values, and one byte per value for the backward pass."""
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = offsets < count
    x = tl.load(values + offsets, mask=valid, other=0.0).to(tl.float32)
    scale, steps = scale_and_steps(x, parameter, log2)
    shift = tl.load(zero_point).to(tl.float32)
    lowest, highest = low - shift, high - shift
    levels = rounded(steps)
    clipped = tl.minimum(tl.maximum(levels, lowest), highest)
    remainder = rounded((clipped - steps) * 252.0)
    code = tl.where(levels < lowest, -128.0, tl.where(levels > highest, 127.0, remainder))
    tl.store(results + offsets, (clipped * scale).to(results.dtype.element_ty), mask=valid)
    tl.store(codes + offsets, code.to(tl.int8), mask=valid)


@triton.jit  # type: ignore[untyped-decorator]
def gradient_kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    gradients,
    codes,
    by_values,
    by_scale,
    weight,
    parameter,
    zero_point,
    count,
    low: tl.constexpr,
    high: tl.constexpr,
    log2: tl.constexpr,
    block: tl.constexpr,
):
    """Write the gradient of the values, and each block's part of the gradient of the scale."""
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = offsets < count
    gradient = tl.load(gradients + offsets, mask=valid, other=0.0)
    code = tl.load(codes + offsets, mask=valid, other=0).to(tl.float32)
    below, above = code < -127.0, code > 126.0
    tl.store(by_values + offsets, tl.where(below | above, 0.0, gradient).to(by_values.dtype.element_ty), mask=valid)
    shift = tl.load(zero_point).to(tl.float32)
    slope = tl.where(below, low - shift, tl.where(above, high - shift, code / 252.0))
    block_sum = tl.sum(gradient.to(tl.float32) * slope, axis=0)
    if log2:
        scale, _ = scale_and_steps(slope, parameter, log2)
        block_sum = block_sum * scale * 0.6931471805599453
    tl.store(by_scale + tl.program_id(0), block_sum * weight)
