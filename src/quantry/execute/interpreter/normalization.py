"""Normalizations, with their stored statistics where they have some."""

import torch
from torch import Tensor
from torch.nn import functional


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
) -> Tensor:
    """ONNX BatchNormalization."""
    return functional.batch_norm(x, mean, variance, weight, bias, training=False, momentum=0.0, eps=epsilon)


def instance_norm(x: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """ONNX InstanceNormalization."""
    return functional.instance_norm(x, weight=weight, bias=bias, eps=epsilon)


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Tensor:
    """ONNX LayerNormalization over the last axes."""
    shape = x.shape[axis % x.dim() :]
    # ONNX broadcasts weight and bias; torch wants their full shape.
    weight = weight if weight.shape == shape else weight.expand(shape)
    bias = bias if bias is None or bias.shape == shape else bias.expand(shape)
    return functional.layer_norm(x, shape, weight, bias, epsilon)


def group_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> Tensor:
    """ONNX GroupNormalization; until opset 20 weight and bias are [groups], from opset 21 on [channels]."""
    channels = x.shape[1]
    if weight.shape[0] != channels:
        repeats = channels // num_groups
        weight, bias = (torch.repeat_interleave(factor, repeats) for factor in (weight, bias))
    return functional.group_norm(x, num_groups, weight, bias, epsilon)


def lp_norm(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """ONNX LpNormalization; a vector of zeros stays zero."""
    length = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(length == 0, torch.zeros_like(x), x / length)


def local_response_norm(
    x: Tensor, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """ONNX LRN."""
    return functional.local_response_norm(x, size, alpha, beta, bias)
