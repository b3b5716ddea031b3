"""What the tests of torch's fake quantization share: the reference, and values with gradients."""

from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor

from quantry.numerics import torch_quantizer
from quantry.numerics.torch_quantizer import Gradient, fake_quantize

Function = Callable[[Tensor, Tensor], Tensor]
"""From values and the scale, or its logarithm, to quantized values."""


def reference(
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    limits: tuple[int, int],
    axis: int | None = None,
    gradient: Gradient = Gradient.STRAIGHT_THROUGH,
) -> Tensor:
    """Quantize with plain torch operations, whichever kernels exist."""
    with mock.patch.object(torch_quantizer, "_kernels", return_value=None):
        return fake_quantize(values, scale, zero_point, limits, axis, gradient)


def drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return values and a gradient."""
    generator = torch.Generator().manual_seed(3)
    values, gradient = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(2))
    return values * 3, gradient


def both(function: Function, values: Tensor, gradient: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the result, the gradient of the values and the gradient of the scale."""
    x, learned = values.clone().requires_grad_(), torch.tensor(scale, device=values.device, requires_grad=True)
    result = function(x, learned)
    result.backward(gradient)
    assert x.grad is not None
    return result.detach(), x.grad, learned.grad
