"""Pooling, reductions and softmax."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from quantry.execute.interpreter.attributes import Attributes
from quantry.execute.interpreter.linear import padded, sided_pads

Inputs = list[Any]

_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _window(values: Any, attributes: Attributes) -> tuple[list[int], list[int], list[int], list[int]]:
    kernel = attributes.integers("kernel_shape")
    rank = len(kernel)
    strides, dilations = attributes.integers("strides", [1] * rank), attributes.integers("dilations", [1] * rank)
    pads = sided_pads(list(values.shape[2:]), (kernel, strides, dilations), attributes)
    return kernel, strides, dilations, pads


def _end_pads(values: Any, attributes: Attributes) -> list[int]:
    """Return what ``ceil_mode`` adds behind each axis so that the last window is whole."""
    kernel, strides, dilations, pads = _window(values, attributes)
    rank = len(kernel)
    extra = []
    for axis in range(rank):
        length = values.shape[2 + axis] + pads[axis] + pads[rank + axis]
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        steps = -(-(length - reach) // strides[axis])
        # A window that would begin in the padding behind is not counted.
        if steps * strides[axis] >= values.shape[2 + axis] + pads[axis]:
            steps -= 1
        extra.append(max(0, steps * strides[axis] + reach - length))
    return extra


def _max_pool(inputs: Inputs, attributes: Attributes) -> Any:
    values = inputs[0]
    kernel, strides, dilations, pads = _window(values, attributes)
    rank = len(kernel)
    if attributes.integer("ceil_mode"):
        pads = pads[:rank] + [a + b for a, b in zip(pads[rank:], _end_pads(values, attributes), strict=True)]
    values = padded(values, pads, float("-inf"))
    return _MAX_POOL[rank](values, kernel, strides, 0, dilations)


def _average_pool(inputs: Inputs, attributes: Attributes) -> Any:
    values = inputs[0]
    kernel, strides, _, pads = _window(values, attributes)
    rank = len(kernel)
    ends = _end_pads(values, attributes) if attributes.integer("ceil_mode") else [0] * rank
    counted = torch.ones((1, 1, *values.shape[2:]), device=values.device)
    counted = padded(counted, pads, 1.0 if attributes.integer("count_include_pad") else 0.0)
    outside = [0] * rank + ends
    sums = _AVERAGE_POOL[rank](padded(padded(values, pads), outside), kernel, strides)
    return sums / _AVERAGE_POOL[rank](padded(counted, outside), kernel, strides)


def _axes(inputs: Inputs, attributes: Attributes) -> list[int]:
    if "axes" in attributes:
        return attributes.integers("axes")
    if len(inputs) > 1 and inputs[1] is not None and inputs[1].numel():
        return [int(axis) for axis in inputs[1].tolist()]
    return [] if attributes.integer("noop_with_empty_axes") else list(range(inputs[0].dim()))


def _reduced(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    def reduce(inputs: Inputs, attributes: Attributes) -> Any:
        axes = _axes(inputs, attributes)
        return function(inputs[0], axes, bool(attributes.integer("keepdims", 1))) if axes else inputs[0]

    return reduce


def _product(values: Any, axes: list[int], keep: bool) -> Any:
    for axis in sorted((axis % values.dim() for axis in axes), reverse=True):
        values = values.prod(axis, keepdim=keep)
    return values


def _global(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    return lambda inputs, _: function(inputs[0], list(range(2, inputs[0].dim())), keepdim=True)


def _softmax(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    def apply(inputs: Inputs, attributes: Attributes) -> Any:
        values = inputs[0]
        if attributes.opset >= 13:
            return function(values, attributes.integer("axis", -1))
        axis = attributes.integer("axis", 1) % values.dim()
        flat = values.reshape(*values.shape[:axis], -1)
        return function(flat, -1).reshape(values.shape)

    return apply


REDUCTION: dict[str, Callable[[Inputs, Attributes], Any]] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global(torch.mean),
    "GlobalMaxPool": _global(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceSum": _reduced(torch.sum),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMin": _reduced(torch.amin),
    "ReduceProd": _reduced(_product),
    "ReduceL1": _reduced(lambda values, axes, keep: values.abs().sum(axes, keep)),
    "ReduceL2": _reduced(lambda values, axes, keep: values.square().sum(axes, keep).sqrt()),
    "ReduceSumSquare": _reduced(lambda values, axes, keep: values.square().sum(axes, keep)),
    "ReduceLogSumExp": _reduced(torch.logsumexp),
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
}
