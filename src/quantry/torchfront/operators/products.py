"""Convolutions and matrix products."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quantry.torchfront.operators.operator_entry import OperatorEntry


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, **attributes: Any) -> Tensor:
    """ONNX Conv; padding that differs between the two ends of an axis is added before.

    Args:
        x: [batch, channels, ...].
        weight: [outputs, channels / group, ...].
        bias: [outputs].
        attributes: As ONNX names them.
    """
    spatial = weight.dim() - 2
    stride, dilation = _or_ones(attributes.get("strides"), spatial), _or_ones(attributes.get("dilations"), spatial)
    padding = list(attributes.get("pads") or [0] * (2 * spatial))
    auto_pad = attributes.get("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        padding = _same(x, weight, stride, dilation, upper=auto_pad == "SAME_UPPER")
    if padding[:spatial] != padding[spatial:]:
        x = functional.pad(x, _torch_order(padding, spatial))
        padding = [0] * (2 * spatial)
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[spatial - 1]
    return function(x, weight, bias, stride, padding[:spatial], dilation, attributes.get("group", 1))


def conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None = None, **attributes: Any) -> Tensor:
    """ONNX ConvTranspose with the same padding at both ends.

    Args:
        x: [batch, channels, ...].
        weight: [channels, outputs / group, ...].
        bias: [outputs].
        attributes: As ONNX names them.
    """
    spatial = weight.dim() - 2
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[spatial - 1]
    return function(
        x,
        weight,
        bias,
        _or_ones(attributes.get("strides"), spatial),
        list(attributes.get("pads") or [0] * spatial)[:spatial],
        list(attributes.get("output_padding") or [0] * spatial),
        attributes.get("group", 1),
        _or_ones(attributes.get("dilations"), spatial),
    )


def gemm(a: Tensor, b: Tensor, c: Tensor | None = None, **attributes: Any) -> Tensor:
    """ONNX Gemm: ``alpha * A @ B + beta * C``, either matrix transposed where the attributes say so."""
    left, right = a.t() if attributes.get("transA") else a, b.t() if attributes.get("transB") else b
    product = left @ right
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    if alpha != 1.0:
        product = product * alpha
    if c is None:
        return product
    return product + (c if beta == 1.0 else c * beta)


def _or_ones(values: Sequence[int] | None, count: int) -> list[int]:
    return list(values or [1] * count)


def _torch_order(padding: Sequence[int], spatial: int) -> list[int]:
    """From ONNX's all starts, then all ends, to torch's pairs from the last axis on."""
    return [padding[end + axis] for axis in reversed(range(spatial)) for end in (0, spatial)]


def _same(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], *, upper: bool) -> list[int]:
    starts, ends = [], []
    for axis, (step, spread) in enumerate(zip(stride, dilation, strict=True)):
        size, reach = x.shape[2 + axis], (weight.shape[2 + axis] - 1) * spread + 1
        total = max((-(-size // step) - 1) * step + reach - size, 0)
        starts.append(total // 2 if upper else total - total // 2)
        ends.append(total - starts[-1])
    return [*starts, *ends]


OPERATORS = {
    "Conv": OperatorEntry(conv),
    "ConvTranspose": OperatorEntry(conv_transpose),
    "Gemm": OperatorEntry(gemm),
    "MatMul": OperatorEntry(torch.matmul),
}
