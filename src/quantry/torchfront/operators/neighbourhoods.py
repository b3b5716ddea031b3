"""Pooling, reductions, normalization and resizing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quantry.torchfront.operators.operator_entry import OperatorEntry


def max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    ceil_mode: int = 0,
) -> Tensor:
    """ONNX MaxPool; uneven padding is added before, with what no maximum can be."""
    spatial = len(kernel_shape)
    padding = list(pads) or [0] * (2 * spatial)
    if padding[:spatial] != padding[spatial:] or any(2 * p > k for p, k in zip(padding, kernel_shape, strict=False)):
        x = functional.pad(x, _pairs(padding, spatial), value=float("-inf"))
        padding = [0] * (2 * spatial)
    function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[spatial - 1]
    stride, dilation = list(strides) or [1] * spatial, list(dilations) or [1] * spatial
    return function(x, list(kernel_shape), stride, padding[:spatial], dilation, bool(ceil_mode))


def average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Tensor:
    """ONNX AveragePool with the same padding at both ends."""
    spatial = len(kernel_shape)
    padding = list(pads)[:spatial] or [0] * spatial
    function = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[spatial - 1]
    stride = list(strides) or [1] * spatial
    return function(x, list(kernel_shape), stride, padding, bool(ceil_mode), bool(count_include_pad))


def global_average_pool(x: Tensor) -> Tensor:
    """ONNX GlobalAveragePool."""
    return x.mean(tuple(range(2, x.dim())), keepdim=True)


def reduce_mean(x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, **_: int) -> Tensor:
    """ONNX ReduceMean."""
    return x.mean(_axes(x, axes), keepdim=bool(keepdims))


def reduce_sum(x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1, **_: int) -> Tensor:
    """ONNX ReduceSum."""
    return x.sum(_axes(x, axes), keepdim=bool(keepdims))


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX Softmax."""
    return torch.softmax(x, axis)


def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX LogSoftmax."""
    return torch.log_softmax(x, axis)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, **attributes: Any) -> Tensor:
    """ONNX LayerNormalization."""
    shape = x.shape[attributes.get("axis", -1) :]
    return functional.layer_norm(x, shape, weight, bias, attributes.get("epsilon", 1e-5))


def batch_norm(x: Tensor, *norm: Tensor, **attributes: Any) -> Tensor:
    """ONNX BatchNormalization with its stored statistics: factor, offset, mean and variance."""
    weight, bias, mean, variance = norm
    training, momentum = False, 0.0
    return functional.batch_norm(x, mean, variance, weight, bias, training, momentum, attributes.get("epsilon", 1e-5))


def resize(
    x: Tensor,
    *,
    scales: Sequence[float] = (),
    sizes: Sequence[int] = (),
    mode: str = "nearest",
    **attributes: Any,
) -> Tensor:
    """ONNX Resize of the spatial axes, nearest as torch rounds it, or linear."""
    size = list(sizes)[2:] or [int(old * factor) for old, factor in zip(x.shape[2:], scales[2:], strict=True)]
    if mode == "nearest":
        return functional.interpolate(x, size=size, mode="nearest")
    kind = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)]
    aligned = attributes.get("coordinate_transformation_mode") == "align_corners"
    return functional.interpolate(x, size=size, mode=kind, align_corners=aligned)


def _pairs(padding: Sequence[int], spatial: int) -> list[int]:
    return [padding[end + axis] for axis in reversed(range(spatial)) for end in (0, spatial)]


def _axes(x: Tensor, axes: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(range(x.dim())) if not axes else tuple(axes)


OPERATORS = {
    "MaxPool": OperatorEntry(max_pool),
    "AveragePool": OperatorEntry(average_pool),
    "GlobalAveragePool": OperatorEntry(global_average_pool),
    "ReduceMean": OperatorEntry(reduce_mean, {1: "axes"}),
    "ReduceSum": OperatorEntry(reduce_sum, {1: "axes"}),
    "Softmax": OperatorEntry(softmax),
    "LogSoftmax": OperatorEntry(log_softmax),
    "LayerNormalization": OperatorEntry(layer_norm),
    "BatchNormalization": OperatorEntry(batch_norm),
    "Resize": OperatorEntry(resize, {1: "roi", 2: "scales", 3: "sizes"}),
}
