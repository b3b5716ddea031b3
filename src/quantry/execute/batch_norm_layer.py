"""A linear layer with its batch normalization: separate in training, folded in the exported model.

::

    g = gamma / sqrt(variance + epsilon)                                     running statistics, in float64
    inference and frozen statistics:   y = layer(x, Q(W g), Q(b g + beta - mean g))        the bits of the export
    training:                          y = batch_norm(layer(x, Q(W g)) / g + b)            updates the statistics

Training quantizes the folded weight W g, as the exported model does, but normalizes with the statistics of the batch.
The scheme is that of Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference",
section 3.2.2 (https://arxiv.org/abs/1806.08342).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_SMALLEST = 1e-12
"""Smaller factors count as zero: dividing by them would overflow float32."""


@dataclass(frozen=True)
class BatchNormOf:
    """A batch normalization that was folded into a layer and can still be trained on its own.

    Attributes:
        layer_bias: Name of the layer's own bias, or None if it got one only by folding.
        norm: Names of gamma, beta, running mean and running variance.
        epsilon: Added to the variance.
        momentum: Weight of a new batch in the running statistics, as in torch; ONNX has 1 minus that.
    """

    layer_bias: str | None
    norm: tuple[str, str, str, str]
    epsilon: float
    momentum: float


class BatchNormLayer(nn.Module):  # type: ignore[misc]
    """Computes a layer and its normalization; the graph passes parameters and statistics in.

    Attributes:
        frozen: Whether running statistics are used and not updated in training too.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        options: Mapping[str, Any],
        norm: tuple[float, float],
        weight_quantizer: nn.Module,
        bias_quantizer: nn.Module,
    ) -> None:
        super().__init__()
        self.function, self.options = function, dict(options)
        self.epsilon, self.momentum = norm
        self.weight_quantizer, self.bias_quantizer = weight_quantizer, bias_quantizer
        self.frozen = False

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, *norm: Tensor) -> Tensor:
        """Return the normalized result.

        Args:
            x: The layer's quantized input.
            weight: Its weight, output channels first.
            bias: Its bias, or None.
            norm: gamma, beta, running mean and running variance, each [channels].
        """
        if self.training and not self.frozen:
            return self._train(x, weight, bias, *norm)
        folded = fold(weight, bias, norm, self.epsilon)
        return self.function(x, self.weight_quantizer(folded[0]), self.bias_quantizer(folded[1]), **self.options)

    def _train(self, x: Tensor, weight: Tensor, bias: Tensor | None, *norm: Tensor) -> Tensor:
        gamma, beta, mean, variance = norm
        with torch.no_grad():
            factor = gamma / torch.sqrt(variance + self.epsilon)
            # Any factor works for a channel with gamma 0, because the output is divided by it again.
            factor = torch.where(factor.abs() < _SMALLEST, torch.ones_like(factor), factor)
        tall = (-1,) + (1,) * (weight.dim() - 1)
        y = self.function(x, self.weight_quantizer(weight * factor.reshape(tall)), None, **self.options)
        wide = (1, -1) + (1,) * (y.dim() - 2)
        y = y * (1.0 / factor).to(y.dtype).reshape(wide)
        if bias is not None:
            y = y + bias.to(y.dtype).reshape(wide)
        # A single value for each channel, as after a global pool in a batch of one, has no variance: torch refuses it.
        training = y.numel() > y.shape[1]
        return functional.batch_norm(y, mean, variance, gamma, beta, training, self.momentum, self.epsilon)

    def get_extra_state(self) -> Tensor:
        """Return `frozen`, which is part of a checkpoint, as a tensor like everything else in it."""
        return torch.tensor(self.frozen)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore `frozen`."""
        self.frozen = bool(state)


def fold(weight: Tensor, bias: Tensor | None, norm: Sequence[Tensor], epsilon: float) -> tuple[Tensor, Tensor]:
    """Return weight and bias with the normalization folded in, float32.

    The order of operations is that of the prepare stage, so that both give the same bits.

    Args:
        weight: The layer's weight, output channels first.
        bias: Its bias, or None.
        norm: gamma, beta, running mean and running variance, each [channels].
        epsilon: Added to the variance.
    """
    gamma, beta, mean, variance = (tensor.double() for tensor in norm)
    factor = gamma / torch.sqrt(variance + epsilon)
    offset = beta - mean * factor
    tall = (-1,) + (1,) * (weight.dim() - 1)
    start = 0.0 if bias is None else bias.double()
    return (weight.double() * factor.reshape(tall)).float(), (start * factor + offset).float()
