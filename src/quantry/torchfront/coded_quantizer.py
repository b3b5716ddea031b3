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
import sys
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

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


@functools.cache
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
    values = _dense(values)
    results, codes = torch.empty_like(values), torch.empty_like(values, dtype=torch.int8)
    options = (*limits, weight is None, _BLOCK)
    _start("quantize_kernel", values, (results, codes), (parameter, zero_point), options)
    return results, codes


def _launched_gradients(
    gradient: Tensor,
    codes: Tensor,
    parameter: Tensor,
    zero_point: Tensor,
    limits: tuple[int, int],
    weight: float | None,
) -> tuple[Tensor, Tensor]:
    if gradient.stride() != codes.stride():
        gradient = torch.empty_like(codes, dtype=gradient.dtype).copy_(gradient)
    by_values = torch.empty_like(gradient)
    parts = torch.empty(_blocks(codes.numel()), dtype=torch.float32, device=codes.device)
    options = (*limits, weight is None, _BLOCK)
    factor = 1.0 if weight is None else weight
    _start("gradient_kernel", gradient, (codes, by_values, parts, factor), (parameter, zero_point), options)
    # Added up in a second kernel, so that the result is the same each time.
    by_scale = parts if parts.numel() == 1 else parts.sum()
    return by_values, by_scale.reshape(parameter.shape)


def _start(
    name: str, values: Tensor, made: tuple[Any, ...], scale: tuple[Tensor, Tensor], options: tuple[int | bool, ...]
) -> None:
    """Start a kernel.

    Triton looks every argument over at each start, which takes longer than a small kernel runs: what it compiled for
    arguments of the same kind is started directly.

    Args:
        name: Of the kernel.
        values: What it goes through; its first argument.
        made: Arguments behind it: tensors made here, and a float.
        scale: Parameter and zero point.
        options: Its constants, behind the number of elements.
    """
    count = values.numel()
    grid = (_blocks(count), 1, 1)
    # What triton compiles for: types, whether numbers are multiples of 16, and whether they fit into 32 bits.
    kind = (name, values.dtype, values.device, count % 16 == 0, options)
    aligned = (values.data_ptr() | scale[0].data_ptr() | scale[1].data_ptr()) % 16 == 0
    plain = aligned and 1 < count < 2**31
    compiled = _COMPILED.get(kind) if plain else None
    with _on_device(values):
        if compiled is not None:
            compiled[grid](values, *made, *scale, count, *options)
            return
        compiled = getattr(_kernels(), name)[grid](values, *made, *scale, count, *options)
    if plain and _starts_directly():
        _COMPILED[kind] = compiled


_COMPILED: dict[Any, Any] = {}


@functools.cache
def _starts_directly() -> bool:
    # Before 3.3 a compiled kernel took its arguments without the constants.
    major, minor = (int(part) for part in sys.modules["triton"].__version__.split(".")[:2])
    return (major, minor) >= (3, 3)


def _blocks(count: int) -> int:
    return max(1, -(-count // _BLOCK))


def _on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    # Kernels start on the current device; switching costs as much as starting one.
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return nullcontext()
    switched: AbstractContextManager[Any] = torch.cuda.device_of(tensor)
    return switched


def _dense(values: Tensor) -> Tensor:
    """Return the values in memory without gaps; both usual orders of pictures stay as they are."""
    if values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last):
        return values
    return values.contiguous()
