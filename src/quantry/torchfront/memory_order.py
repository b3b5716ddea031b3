"""The order of a tensor's numbers in memory, for functions that take them one after the other."""

import torch
from torch import Tensor


def laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with its numbers in the order in memory of another one, which has no gaps.

    What ``torch.empty_like`` gives has none, and has the order of its argument where that has none either.

    Args:
        tensor: Any.
        like: What it is to be read beside; its type does not matter.
    """
    # A tensor may be the negative of what is in memory, or zeros that are nowhere.
    if tensor.stride() == like.stride() and not tensor.is_neg() and not tensor._is_zerotensor():
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
