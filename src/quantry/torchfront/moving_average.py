"""Exponential moving average of a model's weights."""

import copy
import math

import torch
from torch import Tensor, nn

from quantry.errors import ModelError, RecipeError, known_keywords


class MovingAverage:
    """Keeps an average of a model beside it; often the better one to export.

    Attributes:
        decay: Weight of the old average once warmed up.
        warm_up: Steps in which the average follows faster.
    """

    @known_keywords("MovingAverage")
    def __init__(self, model: nn.Module, decay: float = 0.999, warm_up: int = 100) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"an averaged model must be a torch module, got {type(model).__name__}; in MovingAverage")
        if not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise RecipeError(f"MovingAverage.decay must be in [0, 1), got {decay!r}")
        self.decay, self.warm_up = decay, warm_up
        self._module = copy.deepcopy(model)
        self._module.eval()
        self._module.requires_grad_(requires_grad=False)
        self._steps = 0
        self._pairs: tuple[list[Tensor], ...] | None = None
        self._behind: tuple[list[Tensor], list[Tensor]] = ([], [])

    @property
    def module(self) -> nn.Module:
        """The averaged model, in evaluation mode; buffers such as running statistics and scales are the model's own."""
        # Hundreds of scales: copying them at every step took longer than training a small model on a GPU.
        kept, seen = self._behind
        if kept:
            with torch.no_grad():
                torch._foreach_copy_(kept, seen)
        self._behind = ([], [])
        return self._module

    def keep_pairs(self, model: nn.Module) -> None:
        """Look up once what belongs together, for a model whose parameters stay the same objects from now on.

        Looking at every step takes longer than averaging where a model has many parts.
        """
        self._pairs = self._found(model)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update(self, model: nn.Module) -> None:
        """Take one step's weights in."""
        self._steps += 1
        decay = self.decay * (1 - math.exp(-self._steps / max(self.warm_up, 1)))
        ours, theirs, kept, seen = self._pairs or self._found(model)
        torch._foreach_lerp_(ours, theirs, 1 - decay)
        self._behind = (kept, seen)

    def _found(self, model: nn.Module) -> tuple[list[Tensor], ...]:
        theirs = [part.detach() for part in model.parameters()]
        return list(self._module.parameters()), theirs, list(self._module.buffers()), list(model.buffers())
