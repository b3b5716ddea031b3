"""Quantization with one scale in C, for float32 on a CPU; ``quantize_values.c`` walks over a tensor once.

torch's kernel takes twenty times as long there and plain operations seven times. They stay the way where there is no
compiler, for other types, and wherever torch looks on: while it compiles, traces or transforms.

::

    q = round(x / s),   y = clip(q, low, high) s
    dL/dx = m dL/dy                       m is 1 inside the range and 0 where x saturates
    dL/ds = <dL/dy, r>                    r is q - x / s inside, and the bound that was hit outside
    dL/dt = s ln 2 dL/ds                  where s = 2 ** round(t)
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from quantry.numerics import kernels
from quantry.torchfront.memory_order import laid_out
from quantry.torchfront.torch_threads import call, torch_threads

_Grid = tuple[float, float, float]
"""The scale, and the smallest and largest level without the zero point."""

_CHUNK = 1 << 15
"""``CHUNK`` of the C file."""

_MANY = 1 << 17
"""From so many values on threads share them; fewer take as long as some calls of Python functions."""

_ALONE = 8
"""Where torch has more threads than this and they cannot be had, its own kernel in all of them is faster."""


def is_native(values: Tensor) -> bool:
    """Whether a tensor can be quantized in C."""
    return (
        values.dtype is torch.float32
        and values.device.type == "cpu"
        and type(values) in (Tensor, nn.Parameter)
        and not values.is_neg()
        and not values._is_zerotensor()
        and torch._C._has_storage(values)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and kernels.loaded() is not None
        and (torch.get_num_threads() <= _ALONE or torch_threads() is not None)
    )


def native_fake_quantize(values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> Tensor:
    """Quantize and dequantize with a scale that is given.

    Args:
        values: Floats of any shape, for which `is_native` holds; the result has the same.
        scale: float32, one number.
        zero_point: int32, one number.
        limits: Smallest and largest integer.
    """
    result: Tensor = _Given.apply(values, scale, zero_point, limits)
    return result


def native_learned_fake_quantize(
    values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None = None
) -> Tensor:
    """Quantize and dequantize with a scale that is learned.

    Args:
        values: Floats of any shape, for which `is_native` holds; the result has the same.
        parameter: float32, one number: log2 of the scale, which is rounded with the gradient passed through, or the
            scale where `weight` is given.
        zero_point: int32, one number.
        limits: Smallest and largest integer.
        weight: None learns log2 of the scale; else a factor of the gradient by the scale.
    """
    result: Tensor = _Learned.apply(values, parameter, zero_point, limits, weight)
    return result


class _Given(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> Tensor:
        result, kept = torch.empty_like(values), {}
        if ctx.needs_input_grad[0]:
            kept["inside"] = torch.empty_like(values, dtype=torch.bool)
            ctx.save_for_backward(kept["inside"])
        _compute("quantize", result, _grid(scale, zero_point, limits), values=laid_out(values, result), **kept)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        (inside,), gradient = ctx.saved_tensors, gradients[0]
        if not _can_be_read(gradient):
            return gradient * inside, None, None, None
        result = torch.empty_like(inside, dtype=gradient.dtype)
        _compute("pass_inside", result, gradients=laid_out(gradient, result), inside=laid_out(inside, result))
        return result, None, None, None


class _Learned(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
    ) -> Tensor:
        scale = torch.exp2(torch.round(parameter)) if weight is None else parameter
        ctx.save_for_backward(values, scale, zero_point)
        ctx.limits, ctx.weight = limits, weight
        result = torch.empty_like(values)
        _compute("quantize", result, _grid(scale, zero_point, limits), values=laid_out(values, result))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        values, scale, zero_point = ctx.saved_tensors
        grid = _grid(scale, zero_point, ctx.limits)
        # Quantizing again costs less than keeping what it gave.
        way = _gradients_in_c if _can_be_read(gradients[0]) else _gradients_by_operations
        by_values, by_scale = way(gradients[0], values, grid)
        factor = float(scale) * math.log(2.0) if ctx.weight is None else ctx.weight
        return by_values, (by_scale * factor).to(scale.dtype).reshape(scale.shape), None, None, None


def _can_be_read(gradient: Tensor) -> bool:
    """Whether a gradient is in memory, and nobody asks for its gradient."""
    return is_native(gradient) and not (torch.is_grad_enabled() and gradient.requires_grad)


def _gradients_in_c(gradient: Tensor, values: Tensor, grid: _Grid) -> tuple[Tensor, Tensor]:
    by_values = torch.empty_like(values)
    sums = torch.empty(-(-values.numel() // _CHUNK), dtype=torch.float64)
    values, gradient = laid_out(values, by_values), laid_out(gradient, by_values)
    _compute("learn", by_values, grid, values=values, gradients=gradient, sums=sums)
    return by_values, sums.sum()


def _gradients_by_operations(gradient: Tensor, values: Tensor, grid: _Grid) -> tuple[Tensor, Tensor]:
    scale, low, high = grid
    with torch.no_grad():
        steps = values / scale
        levels = torch.round(steps)
        inside = (levels >= low) & (levels <= high)
        slope = torch.where(inside, levels - steps, levels.clamp(low, high))
    return gradient * inside, (gradient * slope).sum()


def _compute(name: str, results: Tensor, grid: _Grid = (1.0, 0.0, 0.0), **tensors: Tensor) -> None:
    """Call a function of the library in as many threads as torch would use.

    Args:
        name: The function.
        results: What it writes.
        grid: Scale, smallest and largest level.
        tensors: The other fields of its task; those with a number for each value are in the order of the results.
    """
    compiled, count = kernels.loaded(), results.numel()
    pointers = {field: tensor.data_ptr() for field, tensor in tensors.items()}
    scale, low, high = grid
    task = kernels.QuantizeTask(results=results.data_ptr(), count=count, scale=scale, low=low, high=high, **pointers)
    call(getattr(compiled, name), task, alone=count < _MANY)


def _grid(scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> _Grid:
    shift = int(zero_point)
    return float(scale), float(limits[0] - shift), float(limits[1] - shift)
