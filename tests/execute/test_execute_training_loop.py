"""The one training loop makes the steps of torch's own Adam, schedule and clipping."""

import math

import pytest
import torch
from torch import Tensor

from quantry.execute.training_loop import TrainingLoop

RATES = (0.1, 0.01)
STEPS = 12


def start(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return tensors to train, and one batch of targets for each step."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator) for shape in ((3, 4), (5,))]
    return [tensor.requires_grad_() for tensor in tensors], [torch.randn(5, generator=generator) for _ in range(STEPS)]


def loss_of(tensors: list[Tensor], target: Tensor) -> Tensor:
    return (tensors[0].sum() * tensors[1] - target).square().sum()


def factor(step: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / STEPS))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_steps_are_those_of_adam_with_a_schedule(seed: int, clip: float | None) -> None:
    ours, targets = start(seed)
    groups = [([tensor], rate) for tensor, rate in zip(ours, RATES, strict=True)]
    loop = TrainingLoop(groups, factor, None if clip is None else (clip, ours))
    theirs, _ = start(seed)
    adam = torch.optim.Adam([{"params": [tensor], "lr": rate} for tensor, rate in zip(theirs, RATES, strict=True)])
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, factor)
    for step, target in enumerate(targets):
        loop.step(step, [loss_of(ours, target)])
        adam.zero_grad()
        loss_of(theirs, target).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        adam.step()
        schedule.step()
        for left, right in zip(ours, theirs, strict=True):
            assert torch.equal(left, right)


def test_losses_of_one_step_are_added() -> None:
    ours, targets = start(0)
    theirs, _ = start(0)
    for tensors, losses in ((ours, 2), (theirs, 1)):
        loop = TrainingLoop([(tensors, 0.1)], lambda _: 1.0)
        loop.step(0, (loss_of(tensors, targets[0]) / losses for _ in range(losses)))
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right)
