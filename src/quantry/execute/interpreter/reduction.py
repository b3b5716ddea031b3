"""Pooling, reductions and softmax."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from quantry.execute.interpreter.linear import explicit_pads, padded

_MAX_POOL = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
_AVERAGE_POOL = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> Tensor:
    """ONNX MaxPool, without the indices."""
    rank = len(kernel_shape)
    stride, dilation = list(strides) or [1] * rank, list(dilations) or [1] * rank
    padding = explicit_pads(x.shape[2:], (kernel_shape, stride, dilation), pads, auto_pad)
    # torch pads both ends alike, by at most half a kernel. Anything else is added before, as what no maximum can be.
    if padding[:rank] != padding[rank:] or any(
        2 * pad > size for pad, size in zip(padding, kernel_shape, strict=False)
    ):
        ends = _whole_windows(x.shape[2:], (kernel_shape, stride, dilation), padding) if ceil_mode else [0] * rank
        padding = padding[:rank] + [pad + end for pad, end in zip(padding[rank:], ends, strict=True)]
        x, padding, ceil_mode = padded(x, padding, float("-inf")), [0] * rank, 0
    return _MAX_POOL[rank - 1](x, list(kernel_shape), stride, padding[:rank], dilation, bool(ceil_mode))


def average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Tensor:
    """ONNX AveragePool."""
    rank = len(kernel_shape)
    kernel, stride, function = list(kernel_shape), list(strides) or [1] * rank, _AVERAGE_POOL[rank - 1]
    window = (kernel, stride, [1] * rank)
    padding = explicit_pads(x.shape[2:], window, pads, auto_pad)
    alike = padding[:rank] == padding[rank:] and all(
        2 * pad <= size for pad, size in zip(padding, kernel, strict=False)
    )
    if alike and not ceil_mode:
        return function(x, kernel, stride, padding[:rank], count_include_pad=bool(count_include_pad))
    # Otherwise divide the sum of each window by the sum of ones that ONNX counts there. What ceil_mode adds after the
    # padding is never counted.
    ends = [0] * rank + (_whole_windows(x.shape[2:], window, padding) if ceil_mode else [0] * rank)
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    counted = padded(padded(ones, padding, 1.0 if count_include_pad else 0.0), ends)
    return function(padded(padded(x, padding), ends), kernel, stride) / function(counted, kernel, stride)


def _whole_windows(
    lengths: Sequence[int], window: tuple[Sequence[int], Sequence[int], Sequence[int]], pads: Sequence[int]
) -> list[int]:
    """Return what ``ceil_mode`` adds after each axis so that its last window is whole."""
    rank = len(lengths)
    extra = []
    for axis, (length, size, stride, dilation) in enumerate(zip(lengths, *window, strict=True)):
        whole = length + pads[axis] + pads[rank + axis]
        reach = dilation * (size - 1) + 1
        steps = -(-(whole - reach) // stride)
        # A window that would start in the padding after the axis does not count.
        if steps * stride >= length + pads[axis]:
            steps -= 1
        extra.append(max(0, steps * stride + reach - whole))
    return extra


def lp_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    p: int = 2,
) -> Tensor:
    """ONNX LpPool: the p-norm of each window."""
    total = average_pool(
        x.abs() ** p,
        kernel_shape=kernel_shape,
        strides=strides,
        pads=pads,
        auto_pad=auto_pad,
        count_include_pad=1,
    )
    return (total * math.prod(kernel_shape)) ** (1 / p)


def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    """ONNX GlobalLpPool."""
    return (x.abs() ** p).sum(tuple(range(2, x.dim())), keepdim=True) ** (1 / p)


def global_average_pool(x: Tensor) -> Tensor:
    """ONNX GlobalAveragePool."""
    return x.mean(tuple(range(2, x.dim())), keepdim=True)


def global_max_pool(x: Tensor) -> Tensor:
    """ONNX GlobalMaxPool."""
    return x.amax(tuple(range(2, x.dim())), keepdim=True)


def reduce_mean(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceMean."""
    return _reduced(torch.mean, x, axes, keepdims, noop_with_empty_axes)


def reduce_sum(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceSum."""
    return _reduced(torch.sum, x, axes, keepdims, noop_with_empty_axes)


def reduce_max(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceMax."""
    return _reduced(torch.amax, x, axes, keepdims, noop_with_empty_axes)


def reduce_min(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceMin."""
    return _reduced(torch.amin, x, axes, keepdims, noop_with_empty_axes)


def reduce_product(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceProd."""
    return _reduced(_product, x, axes, keepdims, noop_with_empty_axes)


def reduce_l1(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceL1."""
    return _reduced(torch.sum, x.abs(), axes, keepdims, noop_with_empty_axes)


def reduce_l2(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceL2."""
    return _reduced(torch.sum, x.square(), axes, keepdims, noop_with_empty_axes).sqrt()


def reduce_sum_square(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceSumSquare."""
    return _reduced(torch.sum, x.square(), axes, keepdims, noop_with_empty_axes)


def reduce_log_sum_exp(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceLogSumExp."""
    return _reduced(torch.logsumexp, x, axes, keepdims, noop_with_empty_axes)


def reduce_log_sum(
    x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceLogSum."""
    return _reduced(torch.sum, x, axes, keepdims, noop_with_empty_axes).log()


def _reduced(
    function: Callable[..., Tensor], x: Tensor, axes: Sequence[int] | None, keepdims: int, noop_with_empty_axes: int
) -> Tensor:
    if not axes and noop_with_empty_axes:
        return x
    return function(x, tuple(axes or range(x.dim())), keepdim=bool(keepdims))


def _product(x: Tensor, axes: Sequence[int], *, keepdim: bool) -> Tensor:
    # torch multiplies along one axis at a time; from the last axis on, the others keep their numbers.
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX Softmax."""
    return torch.softmax(x, axis)


def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX LogSoftmax."""
    return torch.log_softmax(x, axis)


def hard_max(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX Hardmax: 1 at the first largest value of an axis."""
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


def flat_softmax(x: Tensor, *, axis: int = 1) -> Tensor:
    """ONNX Softmax before opset 13, over all axes from one on."""
    return torch.softmax(x.flatten(axis % x.dim()), -1).reshape(x.shape)


def flat_log_softmax(x: Tensor, *, axis: int = 1) -> Tensor:
    """ONNX LogSoftmax before opset 13, over all axes from one on."""
    return torch.log_softmax(x.flatten(axis % x.dim()), -1).reshape(x.shape)
