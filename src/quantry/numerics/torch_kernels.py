"""The compiled kernels on torch tensors: fake quantization with one scale for float32 on a CPU.

``c/quantize_values.c`` reads a tensor once, where plain torch operations read it seven times; measured with 8 threads,
forward and backward together take a quarter of their time. Results and the gradient
of the values have the bits of the reference in ``torch_quantizer``. The gradient of the scale is summed in chunks in
float64, so that it does not depend on the number of threads.

This module imports torch, so import it inside functions only.
"""

import ctypes
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantry.numerics import kernels

_Levels = tuple[float, float, float]
"""The scale, and the smallest and largest level: limits minus zero point."""

_CHUNK = 1 << 15
"""Must equal ``CHUNK`` in the C file: it writes one sum per chunk."""

_MANY = 1 << 17
"""Tensors of at least this size are shared by threads. Smaller ones take less time than starting the threads."""

_ALONE = 8
"""If torch has more threads than this and we cannot run in them, torch's operations are faster than one C thread."""


def can_read(tensor: Tensor) -> bool:
    """Return whether kernels can read a tensor by its address and torch does not need to see the operations.

    Torch has to see them while it compiles, traces, exports or transforms a function.
    """
    return (
        tensor.dtype is torch.float32
        and tensor.device.type == "cpu"
        and type(tensor) in (Tensor, nn.Parameter)
        and _is_stored(tensor)
        and torch._C._has_storage(tensor)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and kernels.loaded() is not None
        and (torch.get_num_threads() <= _ALONE or torch_openmp() is not None)
    )


def fixed_scale(values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> Tensor:
    """Quantize and dequantize; see `quantry.numerics.torch_quantizer.fake_quantize`.

    Args:
        values: A tensor for which `can_read` holds.
        scale: float32, one number.
        zero_point: A whole number.
        limits: Smallest and largest integer.
    """
    result: Tensor = _FixedScale.apply(values, scale, zero_point, limits)
    return result


def learned_scale(
    values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
) -> Tensor:
    """Quantize and dequantize with a scale that gets a gradient.

    Args:
        values: A tensor for which `can_read` holds.
        parameter: float32, one number: the scale, or its binary logarithm if `weight` is None, which is rounded.
        zero_point: A whole number.
        limits: Smallest and largest integer.
        weight: Multiplies the gradient of the scale; None gives the logarithm the gradient.
    """
    result: Tensor = _LearnedScale.apply(values, parameter, zero_point, limits, weight)
    return result


class _FixedScale(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> Tensor:
        result, saved = torch.empty_like(values), {}
        if ctx.needs_input_grad[0]:
            saved["inside"] = torch.empty_like(values, dtype=torch.bool)
            ctx.save_for_backward(saved["inside"])
        _compute("quantize", result, _levels(scale, zero_point, limits), values=in_order_of(values, result), **saved)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        (inside,), gradient = ctx.saved_tensors, gradients[0]
        if not _can_differentiate(gradient):
            return gradient * inside, None, None, None
        result = torch.empty_like(inside, dtype=gradient.dtype)
        _compute("pass_inside", result, gradients=in_order_of(gradient, result), inside=in_order_of(inside, result))
        return result, None, None, None


class _LearnedScale(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, parameter: Tensor, zero_point: Tensor, limits: tuple[int, int], weight: float | None
    ) -> Tensor:
        scale = torch.exp2(torch.round(parameter)) if weight is None else parameter
        # Only the values are saved, which other operations save anyway: quantizing them again in the backward pass
        # takes less time than writing and reading another tensor.
        ctx.save_for_backward(values, scale, zero_point)
        ctx.limits, ctx.weight = limits, weight
        result = torch.empty_like(values)
        _compute("quantize", result, _levels(scale, zero_point, limits), values=in_order_of(values, result))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        values, scale, zero_point = ctx.saved_tensors
        levels = _levels(scale, zero_point, ctx.limits)
        compute = _compiled_gradients if _can_differentiate(gradients[0]) else _plain_gradients
        by_values, by_scale = compute(gradients[0], values, levels)
        factor = float(scale) * math.log(2.0) if ctx.weight is None else ctx.weight
        return by_values, (by_scale * factor).to(scale.dtype).reshape(scale.shape), None, None, None


def _can_differentiate(gradient: Tensor) -> bool:
    """Return whether kernels can read a gradient and no gradient of the gradient is wanted."""
    return can_read(gradient) and not (torch.is_grad_enabled() and gradient.requires_grad)


def _compiled_gradients(gradient: Tensor, values: Tensor, levels: _Levels) -> tuple[Tensor, Tensor]:
    by_values = torch.empty_like(values)
    sums = torch.empty(-(-values.numel() // _CHUNK), dtype=torch.float64)
    values, gradient = in_order_of(values, by_values), in_order_of(gradient, by_values)
    _compute("learn", by_values, levels, values=values, gradients=gradient, sums=sums)
    return by_values, sums.sum()


def _plain_gradients(gradient: Tensor, values: Tensor, levels: _Levels) -> tuple[Tensor, Tensor]:
    scale, low, high = levels
    with torch.no_grad():
        exact = values / scale
        rounded = torch.round(exact)
        inside = (rounded >= low) & (rounded <= high)
        slope = torch.where(inside, rounded - exact, rounded.clamp(low, high))
    return gradient * inside, (gradient * slope).sum()


def _compute(name: str, results: Tensor, levels: _Levels = (1.0, 0.0, 0.0), **tensors: Tensor) -> None:
    """Call a kernel; all tensors have the memory order of the results."""
    library, count = kernels.loaded(), results.numel()
    pointers = {field: tensor.data_ptr() for field, tensor in tensors.items()}
    scale, low, high = levels
    task = kernels.QuantizeTask(results=results.data_ptr(), count=count, scale=scale, low=low, high=high, **pointers)
    run_in_torch_threads(getattr(library, name), task, alone=count < _MANY)


def _levels(scale: Tensor, zero_point: Tensor, limits: tuple[int, int]) -> _Levels:
    shift = int(zero_point)
    return float(scale), float(limits[0] - shift), float(limits[1] - shift)


def in_order_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor whose numbers lie in memory in the same order as those of another, so that C can walk over both.

    Args:
        tensor: Any tensor.
        like: A dense tensor of the same shape and any type, such as ``torch.empty_like`` returns.
    """
    if tensor.stride() == like.stride() and _is_stored(tensor):
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def _is_stored(tensor: Tensor) -> bool:
    """Return whether memory holds the values themselves: torch also has lazily negated and unallocated zero tensors."""
    return not tensor.is_neg() and not tensor._is_zerotensor()


def run_in_torch_threads(function: Any, task: ctypes.Structure, *, alone: bool) -> None:
    """Call a kernel in as many threads as torch uses.

    Args:
        function: Takes a pointer to the task. Several threads call it with the same task; each takes chunks of work.
        task: The work.
        alone: Use one thread because there is too little work for several.
    """
    # All threads or one: OpenMP ends threads that a smaller team does not need, and torch's next operation would have
    # to start them again.
    threads = 1 if alone else torch.get_num_threads()
    openmp = torch_openmp() if threads > 1 else None
    if openmp is None:
        function(ctypes.byref(task))
    else:
        openmp(function, ctypes.pointer(task), threads)


@functools.cache  # The library is searched and its function bound once per process.
def torch_openmp() -> Callable[[Any, Any, int], None] | None:
    """Return a function that calls a C function in torch's OpenMP threads, or None if torch's OpenMP is not found.

    Torch's threads spin for a while after each operation. Threads of our own would compete with them for the cores, so
    we run in torch's. ``GOMP_parallel`` is the entry point that gcc's compiled OpenMP code calls.
    """
    # Measured on two cores of an AMD EPYC, best of 250 training steps of a net of depthwise and pointwise convolutions
    # with a quantizer after each, 4x16x64x64 values: 11.9 ms in torch's threads, 12.4 ms in one thread and 14.2 ms in
    # Python threads; with learned scales 6.4, 7.5 and 7.9 ms; candidate errors alone 0.12, 0.18 and 0.21 ms. The gain
    # grows with the number of cores, because torch's own operations use all of them.
    home = Path(torch.__file__).parent
    bundled = [
        file for folder in (home / "lib", home.parent / "torch.libs") for file in sorted(folder.glob("lib*omp*"))
    ]
    for library in (*map(str, bundled), "libgomp.so.1", "libiomp5.so", "libomp.so.5"):
        try:
            # RTLD_NOLOAD finds only what torch has loaded already. A second OpenMP library would bring new threads.
            parallel = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return functools.partial(_run_parallel, parallel)
    return None


def _run_parallel(parallel: Any, function: Any, argument: Any, threads: int) -> None:
    parallel(ctypes.cast(function, ctypes.c_void_p), ctypes.cast(argument, ctypes.c_void_p), threads, 0)
