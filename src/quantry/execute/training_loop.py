"""The loop of everything that is trained in torch: tuning steps, and modules that users train with `qat`.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class TrainingLoop:
    """Makes steps of Adam; the caller computes losses, draws batches and keeps states.

    Adam's steps have the size of the learning rate, whatever the gradient, so every group of tensors has a rate of its
    own.

    Args:
        groups: Tensors with their peak learning rate.
        schedule: From the number of a step to the share of the peak rates that it uses.
        clip: Largest norm of the gradient of some tensors, and these tensors; None for no limit.

    Attributes:
        optimizer: The optimizer.
    """

    def __init__(
        self,
        groups: Sequence[tuple[list[Any], float]],
        schedule: Callable[[int], float],
        clip: tuple[float, list[Any]] | None = None,
    ) -> None:
        self._rates, self._schedule, self._clip = [rate for _, rate in groups], schedule, clip
        settings = [{"params": tensors} for tensors, _ in groups]
        # One kernel for all tensors of a group; on a CPU torch's own choice is faster.
        self.optimizer = torch.optim.Adam(settings, fused=groups[0][0][0].is_cuda or None)

    def step(self, number: int, losses: Iterable[Tensor]) -> None:
        """Make a step down the sum of some losses.

        Args:
            number: The step, from 0 on.
            losses: Computed one after the other, so that only one of them needs memory at a time.
        """
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self._schedule(number)
        self.optimizer.zero_grad(set_to_none=True)
        for loss in losses:
            loss.backward()
        if self._clip is not None:
            largest, tensors = self._clip
            torch.nn.utils.clip_grad_norm_(tensors, largest)
        self.optimizer.step()
