"""The operations of tuning that NumPy and torch name differently, for arrays and for tensors on any device."""

from collections.abc import Callable
from typing import Any

import numpy as np

from quantry.numerics import rounding

Load = Callable[[Any], Any]
"""From a NumPy array to what a backend computes with: the array itself, or a tensor on a device."""


def single(values: Any) -> Any:
    """Return values in float32."""
    return values.astype(np.float32) if isinstance(values, np.ndarray) else values.float()


def double(values: Any) -> Any:
    """Return values in float64."""
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def where(condition: Any, values: Any, alternative: Any) -> Any:
    """Return the values where a condition holds, elsewhere the alternative."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, values, alternative)
    import torch

    return torch.where(condition, values, alternative)


def flip(values: Any, axes: tuple[int, ...]) -> Any:
    """Return values in reverse order along some axes."""
    return np.flip(values, axes) if isinstance(values, np.ndarray) else values.flip(axes)


def numbers_like(numbers: list[int], like: Any) -> Any:
    """Return whole numbers as an array, or as a tensor on the device of another one."""
    return np.array(numbers) if isinstance(like, np.ndarray) else like.new_tensor(numbers)


def einsum(subscripts: str, left: Any, right: Any) -> Any:
    """Return sums of products in Einstein's notation."""
    if isinstance(left, np.ndarray):
        return np.einsum(subscripts, left, right)
    import torch

    return torch.einsum(subscripts, left, right)


def round_and_clip(levels: Any, lowest: Any, highest: Any) -> Any:
    """Return values in units of the scale, rounded half to even and clipped."""
    if isinstance(levels, np.ndarray):
        return rounding.round_and_clip(levels, lowest, highest)
    from quantry.numerics import torch_quantizer

    return torch_quantizer.round_and_clip(levels, lowest, highest)
