"""Convolutions and matrix products."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_CONV = (functional.conv1d, functional.conv2d, functional.conv3d)
_CONV_TRANSPOSE = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    group: int = 1,
) -> Tensor:
    """ONNX Conv.

    Args:
        x: [batch, channels, ...].
        weight: [outputs, channels / group, ...].
        bias: [outputs].
        strides: Step of each spatial axis.
        dilations: Distance of the kernel's taps.
        pads: Zeros in front of each axis, then after each.
        auto_pad: Another way to say pads.
        group: Number of groups.
    """
    rank = weight.dim() - 2
    stride, dilation = list(strides) or [1] * rank, list(dilations) or [1] * rank
    padding = explicit_pads(x.shape[2:], (weight.shape[2:], stride, dilation), pads, auto_pad)
    if padding[:rank] != padding[rank:]:  # torch pads both ends of an axis alike
        x, padding = padded(x, padding), [0] * 2 * rank
    return _CONV[rank - 1](x, weight, bias, stride, padding[:rank], dilation, group)


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    group: int = 1,
) -> Tensor:
    """ONNX ConvTranspose.

    Args:
        x: [batch, channels, ...].
        weight: [channels, outputs / group, ...].
        bias: [outputs].
        strides: Distance that neighbours of the input have in the output.
        dilations: Distance of the kernel's taps.
        pads: What is cropped in front of each axis, then after each.
        output_padding: What is added at the end of each axis.
        output_shape: Spatial lengths of the result, which then decide what is cropped.
        auto_pad: Another way to say pads.
        group: Number of groups.
    """
    rank = weight.dim() - 2
    stride, dilation = list(strides) or [1] * rank, list(dilations) or [1] * rank
    extra = list(output_padding) or [0] * rank
    crop = list(pads) or [0] * 2 * rank
    if auto_pad == "VALID":
        crop = [0] * 2 * rank
    if output_shape or auto_pad.startswith("SAME"):
        goal = output_shape[-rank:] if output_shape else [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
        full = [
            (length - 1) * step + (size - 1) * spread + 1 + more
            for length, step, size, spread, more in zip(
                x.shape[2:], stride, weight.shape[2:], dilation, extra, strict=True
            )
        ]
        crop = _crop(full, goal, auto_pad)
    function = _CONV_TRANSPOSE[rank - 1]
    # torch crops both ends of an axis alike, and adds less than a stride or a dilation.
    fits = all(more < max(step, spread) for more, step, spread in zip(extra, stride, dilation, strict=True))
    if crop[:rank] == crop[rank:] and min(crop) >= 0 and fits:
        return function(x, weight, bias, stride, crop[:rank], extra, group, dilation)
    result = function(x, weight, None, stride, 0, 0, group, dilation)
    ends = [more - less for more, less in zip(extra, crop[rank:], strict=True)]
    result = padded(result, [-less for less in crop[:rank]] + ends)
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def _crop(lengths: Sequence[int], goal: Sequence[int], auto_pad: str) -> list[int]:
    """Return what is cropped in front of each axis, then after each, to reach given lengths."""
    totals = [have - want for have, want in zip(lengths, goal, strict=True)]
    half = [max(0, total) // 2 for total in totals]
    excess = [max(0, total) - amount for total, amount in zip(totals, half, strict=True)]
    # The larger half is cropped in front, except for SAME_UPPER. What is missing is added at the end. onnxruntime does
    # both in this way, where the standard leaves it open.
    first, last = (half, excess) if auto_pad == "SAME_UPPER" else (excess, half)
    return first + [amount + min(0, total) for amount, total in zip(last, totals, strict=True)]


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803 - ONNX's name
) -> Tensor:
    """ONNX Gemm: ``alpha * A @ B + beta * C``, either matrix transposed on request."""
    product = torch.matmul(a.t() if transA else a, b.t() if transB else b)
    if alpha != 1.0:
        product = product * alpha
    if c is None:
        return product
    return product + (c if beta == 1.0 else c * beta)


def einsum(*values: Tensor, equation: str) -> Tensor:
    """ONNX Einsum."""
    return torch.einsum(equation, *values)


def explicit_pads(
    lengths: Sequence[int],
    window: tuple[Sequence[int], Sequence[int], Sequence[int]],
    pads: Sequence[int],
    auto_pad: str,
) -> list[int]:
    """Return the pads in front of each axis, then after each, however the node gives them.

    Args:
        lengths: Of the spatial axes.
        window: Kernel, strides and dilations.
        pads: The attribute; empty for none.
        auto_pad: The attribute.
    """
    if auto_pad == "NOTSET":
        return list(pads) or [0] * 2 * len(lengths)
    if auto_pad == "VALID":
        return [0] * 2 * len(lengths)
    totals = [
        max(0, (-(-length // stride) - 1) * stride + dilation * (size - 1) + 1 - length)
        for length, size, stride, dilation in zip(lengths, *window, strict=True)
    ]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return less + more if auto_pad == "SAME_UPPER" else more + less


def padded(values: Tensor, pads: Sequence[int], fill: float = 0.0) -> Tensor:
    """Return values with pads in ONNX's order around their last axes; negative pads crop."""
    rank = len(pads) // 2
    # torch wants pairs of front and back, from the last axis on.
    pairs = [pads[axis + side * rank] for axis in reversed(range(rank)) for side in (0, 1)]
    return functional.pad(values, pairs, value=fill) if any(pairs) else values
