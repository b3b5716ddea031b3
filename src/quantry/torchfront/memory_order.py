"""The order of a tensor's numbers in memory, for functions that take them one after the other."""

import torch
from torch import Tensor


def dense(values: Tensor) -> Tensor:
    """Return the values in memory without gaps; both usual orders of pictures stay as they are."""
    if values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last):
        return values
    return values.contiguous()


def laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """Return a gradient in the order in memory of another tensor, which has no gaps."""
    if gradient.stride() == like.stride():
        return gradient
    return torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
