"""Convolutions, matrix products and normalizations."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from quantry.execute.interpreter.attributes import Attributes

Inputs = list[Any]

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def sided_pads(lengths: list[int], window: tuple[list[int], list[int], list[int]], attributes: Attributes) -> list[int]:
    """Return the pads before and after each axis, in the order of ONNX, whatever way the node says them.

    Args:
        lengths: Of the spatial axes.
        window: Kernel, strides and dilations.
        attributes: Of the node.
    """
    rank = len(lengths)
    mode = attributes.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        return attributes.integers("pads", [0] * 2 * rank) if mode == "NOTSET" else [0] * 2 * rank
    totals = [
        max(0, (-(-length // stride) - 1) * stride + dilation * (size - 1) + 1 - length)
        for length, size, stride, dilation in zip(lengths, *window, strict=True)
    ]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return less + more if mode == "SAME_UPPER" else more + less


def padded(values: Any, pads: list[int], fill: float = 0.0) -> Any:
    """Return values with pads in ONNX's order around their last axes."""
    rank = len(pads) // 2
    flat = [pads[axis + side * rank] for axis in reversed(range(rank)) for side in (0, 1)]
    return F.pad(values, flat, value=fill) if any(flat) else values


def _conv(inputs: Inputs, attributes: Attributes) -> Any:
    values, weight = inputs[:2]
    bias = inputs[2] if len(inputs) > 2 else None
    rank = weight.dim() - 2
    strides, dilations = attributes.integers("strides", [1] * rank), attributes.integers("dilations", [1] * rank)
    pads = sided_pads(list(values.shape[2:]), (list(weight.shape[2:]), strides, dilations), attributes)
    padding = pads[:rank] if pads[:rank] == pads[rank:] else [0] * rank
    if not any(padding):
        values = padded(values, pads)
    return _CONV[rank](values, weight, bias, strides, padding, dilations, attributes.integer("group", 1))


def _conv_transpose(inputs: Inputs, attributes: Attributes) -> Any:
    values, weight = inputs[:2]
    bias = inputs[2] if len(inputs) > 2 else None
    rank = weight.dim() - 2
    strides, dilations = attributes.integers("strides", [1] * rank), attributes.integers("dilations", [1] * rank)
    extra = attributes.integers("output_padding", [0] * rank)
    # Without padding, and cropped afterwards: torch cannot crop the two sides differently.
    result = _CONV_TRANSPOSE[rank](values, weight, bias, strides, 0, 0, attributes.integer("group", 1), dilations)
    pads = attributes.integers("pads", [0] * 2 * rank)
    mode = attributes.text("auto_pad", "NOTSET")
    wanted = attributes.integers("output_shape")
    if wanted or mode.startswith("SAME"):
        goal = wanted[-rank:] if wanted else [n * step for n, step in zip(values.shape[2:], strides, strict=True)]
        totals = [length + e - g for length, e, g in zip(result.shape[2:], extra, goal, strict=True)]
        half = [total // 2 for total in totals]
        rest = [total - part for total, part in zip(totals, half, strict=True)]
        pads = rest + half if mode == "SAME_LOWER" else half + rest
    after = [e - pad for e, pad in zip(extra, pads[rank:], strict=True)]
    result = padded(result, [-pad for pad in pads[:rank]] + after)
    if bias is None or not any(value > 0 for value in after):
        return result
    # What was added at the end has no bias yet.
    full = _CONV_TRANSPOSE[rank](values, weight, None, strides, 0, 0, attributes.integer("group", 1), dilations)
    return padded(full, [-pad for pad in pads[:rank]] + after) + bias.reshape(-1, *([1] * rank))


def _gemm(inputs: Inputs, attributes: Attributes) -> Any:
    left = inputs[0].T if attributes.integer("transA") else inputs[0]
    right = inputs[1].T if attributes.integer("transB") else inputs[1]
    result = left @ right
    alpha, beta = attributes.number("alpha", 1.0), attributes.number("beta", 1.0)
    if alpha != 1.0:
        result = result * alpha
    if len(inputs) > 2 and inputs[2] is not None:
        result = result + (inputs[2] if beta == 1.0 else inputs[2] * beta)
    return result


def _layer_norm(inputs: Inputs, attributes: Attributes) -> Any:
    axis = attributes.integer("axis", -1) % inputs[0].dim()
    bias = inputs[2] if len(inputs) > 2 else None
    shape = inputs[0].shape[axis:]
    weight = inputs[1].expand(shape)
    return F.layer_norm(
        inputs[0], shape, weight, None if bias is None else bias.expand(shape), attributes.number("epsilon", 1e-5)
    )


def _instance_norm(inputs: Inputs, attributes: Attributes) -> Any:
    return F.instance_norm(inputs[0], weight=inputs[1], bias=inputs[2], eps=attributes.number("epsilon", 1e-5))


def _batch_norm(inputs: Inputs, attributes: Attributes) -> Any:
    values, weight, bias, mean, variance = inputs
    return F.batch_norm(values, mean, variance, weight, bias, training=False, eps=attributes.number("epsilon", 1e-5))


def _group_norm(inputs: Inputs, attributes: Attributes) -> Any:
    return F.group_norm(
        inputs[0], attributes.integer("num_groups"), inputs[1], inputs[2], attributes.number("epsilon", 1e-5)
    )


LINEAR: dict[str, Callable[[Inputs, Attributes], Any]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": lambda inputs, _: torch.matmul(inputs[0], inputs[1]),
    "LayerNormalization": _layer_norm,
    "InstanceNormalization": _instance_norm,
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
}
