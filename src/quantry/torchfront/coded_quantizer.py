"""Quantization with one learned scale that keeps a byte of each element for the gradient, for GPUs.

::

    q = round(x / s),   y = clip(q, low, high) s
    dL/dx = m dL/dy                       m is 1 inside the range and 0 where x saturates
    dL/ds = <dL/dy, r>                    r is q - x / s inside, and the bound that was hit outside
    dL/dt = s ln 2 dL/ds                  where s = 2 ** round(t)

Of all that is computed only r is kept, as a byte: 252 codes of a step inside, and one code for each bound. The sum over
a tensor hardly notices; results and dL/dx have the bits of the plain way. With triton each direction is one kernel;
torch.compile makes one of the plain operations by itself.
"""

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from quantry.torchfront.memory_order import laid_out

_BLOCK = 4096
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_RESOLUTION = 252.0
_BELOW, _ABOVE = -128, 127


def is_coded(values: Tensor) -> bool:
    """Whether this way pays: on a CPU nothing joins the operations, and keeping the values is faster."""
    return values.dtype in _TYPES and (values.is_cuda or torch.compiler.is_compiling())


def coded_fake_quantize(
    values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None = None
) -> Tensor:
    """Quantize and dequantize with one learned scale.

    Args:
        values: Floats of any shape, 16 or 32 bits wide; the result has the same.
        parameter: float32, one number: log2 of the scale, which is rounded with the gradient passed through, or the
            scale where `weight` is given.
        zero_point: int32, one number.
        limits: Smallest and largest integer.
        weight: None learns log2 of the scale; else a factor of the gradient by the scale.
    """
    result: Tensor = _Coded.apply(values, parameter, zero_point, limits, weight)
    return result


class _Coded(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
    ) -> Tensor:
        way = _launched if _has_kernels(values) else _computed
        results, codes = way(values, parameter, zero_point, limits, weight)
        ctx.save_for_backward(codes, parameter, zero_point)
        ctx.limits, ctx.weight = limits, weight
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        way = _launched_gradients if _has_kernels(gradients[0]) else _computed_gradients
        codes, parameter, zero_point = ctx.saved_tensors
        by_values, by_scale = way(gradients[0], codes, parameter, zero_point, ctx.limits, ctx.weight)
        return by_values, by_scale, None, None, None


@functools.cache  # A failed import is not remembered by Python and would be tried again in every backward pass.
def _kernels() -> ModuleType | None:
    try:
        from quantry.torchfront import fused_kernels
    except ImportError:
        return None
    return fused_kernels


def _has_kernels(tensor: Tensor) -> bool:
    return tensor.is_cuda and not torch.compiler.is_compiling() and _kernels() is not None


# -- plain operations --------------------------------------------------------------------------------------------------


def _computed(
    values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
) -> tuple[Tensor, Tensor]:
    scale = torch.exp2(torch.round(parameter)) if weight is None else parameter
    steps = values.float() / scale
    low, high = limits[0] - zero_point, limits[1] - zero_point
    levels = torch.round(steps)
    kept = torch.clamp(levels, low, high)
    codes = torch.round((kept - steps) * _RESOLUTION).clamp(_BELOW + 1, _ABOVE - 1)
    codes = torch.where(levels < low, _BELOW, torch.where(levels > high, _ABOVE, codes))
    return (kept * scale).to(values.dtype), codes.to(torch.int8)


def _computed_gradients(
    gradient: Tensor,
    codes: Tensor,
    parameter: Tensor,
    zero_point: Tensor,
    limits: tuple[int, int],
    weight: float | None,
) -> tuple[Tensor, Tensor]:
    below, above = codes == _BELOW, codes == _ABOVE
    slope = torch.where(below, limits[0] - zero_point, torch.where(above, limits[1] - zero_point, codes / _RESOLUTION))
    by_scale = (gradient.float() * slope).sum()
    factor = torch.exp2(torch.round(parameter)) * math.log(2.0) if weight is None else weight
    return torch.where(below | above, 0.0, gradient), (by_scale * factor).reshape(parameter.shape)


# -- kernels -----------------------------------------------------------------------------------------------------------


def _launched(
    values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
) -> tuple[Tensor, Tensor]:
    results, codes = torch.empty_like(values), torch.empty_like(values, dtype=torch.int8)
    values = laid_out(values, results)
    count, log2 = values.numel(), weight is None
    with _on_device(values):
        _kernel("quantize_kernel", count)(values, results, codes, parameter, zero_point, count, *limits, log2, _BLOCK)
    return results, codes


def _launched_gradients(
    gradient: Tensor,
    codes: Tensor,
    parameter: Tensor,
    zero_point: Tensor,
    limits: tuple[int, int],
    weight: float | None,
) -> tuple[Tensor, Tensor]:
    by_values, count = torch.empty_like(codes, dtype=gradient.dtype), codes.numel()
    gradient, codes = laid_out(gradient, by_values), laid_out(codes, by_values)
    parts = torch.empty(_blocks(count), dtype=torch.float32, device=codes.device)
    factor, log2 = 1.0 if weight is None else weight, weight is None
    with _on_device(codes):
        _kernel("gradient_kernel", count)(
            gradient, codes, by_values, parts, factor, parameter, zero_point, count, *limits, log2, _BLOCK
        )
    # Added up in a second kernel, so that the result is the same each time.
    by_scale = parts if parts.numel() == 1 else parts.sum()
    return by_values, by_scale.reshape(parameter.shape)


def _kernel(name: str, count: int) -> Any:
    found = _kernels()
    assert found is not None
    return getattr(found, name)[(_blocks(count),)]


def _blocks(count: int) -> int:
    return max(1, -(-count // _BLOCK))


def _on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    # Kernels start on the current device; switching costs as much as starting one.
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return nullcontext()
    switched: AbstractContextManager[Any] = torch.cuda.device_of(tensor)
    return switched
