"""Keeps training honest: what it returns is better on batches it was not trained on, or is what it started from."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from quantry.errors import DataError

_SHARE, _MOST = 5, 8
"""One batch in five is held out, at most eight: more would only cost time."""

_ERRORS, _LEAST = 1.5, 0.005
"""A gain must exceed this many standard errors of itself, and this share of the loss."""

CHECKS = 8
"""How often a run is compared with its start."""


@dataclass(frozen=True)
class Gain:
    """What training gained on batches it was not trained on.

    Attributes:
        before: Mean loss of the module that training started from.
        after: Mean loss of the module that it returned.
        step: The step that it returned, from 1 on; 0 for the start, because no step was better.
        batches: Number of batches compared.
        trained_on: Whether there was only one batch, which was trained on as well.
    """

    before: float
    after: float
    step: int
    batches: int
    trained_on: bool = False

    def __str__(self) -> str:
        where = "the training batch" if self.trained_on else f"{self.batches} held-out batches"
        if not self.step:
            return f"training did not lower the loss on {where}, {self.before:.4g}: the module is as it was before"
        change = 100 * (1 - self.after / self.before) if self.before else 0.0
        return f"training lowered the loss on {where} from {self.before:.4g} to {self.after:.4g}, by {change:.0f} %"


class Batches:
    """The batches to train on, without end, and those that are held out.

    Args:
        batches: A DataLoader, or any iterable that can be read repeatedly.
        held_out: Batches to hold out; None takes some of `batches`, an empty list none.

    Attributes:
        held_out: The batches that are held out.
        trained_on: Whether they are trained on as well, because there is only one.
    """

    def __init__(self, batches: Iterable[Any], held_out: Iterable[Any] | None) -> None:
        if not isinstance(batches, Iterable):
            raise DataError(f"batches must be a DataLoader or an iterable, got {type(batches).__name__}; in qat")
        self.trained_on = False
        self._source = batches
        self._started: Iterator[Any] = iter(())
        self._skipped = 0
        if held_out is not None:
            self.held_out = list(held_out)
        elif isinstance(batches, Sequence):
            places = set(range(len(batches))[_SHARE - 1 :: _SHARE][:_MOST] or range(len(batches))[-1:])
            self.held_out = [batches[place] for place in sorted(places)]
            self.trained_on = len(batches) == 1
            if not self.trained_on:
                self._source = [batch for place, batch in enumerate(batches) if place not in places]
        else:
            self._take_first()

    def _take_first(self) -> None:
        """Hold out the first batches. A loader that shuffles mixes them into later passes."""
        count = len(self._source) if isinstance(self._source, Sized) else 1
        self._started = iter(self._source)
        self.held_out = list(islice(self._started, min(_MOST, max(1, count // _SHARE))))
        sampler = getattr(self._source, "sampler", None)
        if not isinstance(sampler, torch.utils.data.RandomSampler):
            self._skipped = len(self.held_out)

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for batch in self._started:
            count += 1
            yield batch
        while True:
            before = count
            for batch in islice(iter(self._source), self._skipped, None):
                count += 1
                yield batch
            if count == before:
                if self._skipped and not count and self.held_out:
                    self._skipped, self.trained_on = 0, True
                    continue
                given = f"{count} that can be read only once, as from a generator; make a list" if count else "none"
                raise DataError(f"training needs at least one batch, and must read all repeatedly, got {given}; in qat")


def single_samples(batch: Any) -> list[Any]:
    """Return the samples of a batch as batches of one; a batch without a common first axis is returned as it is."""
    leaves, form = tree_flatten(batch)
    lengths = {leaf.shape[0] if torch.is_tensor(leaf) and leaf.dim() else 0 for leaf in leaves}
    if len(lengths) != 1 or lengths == {0}:
        return [batch]
    return [tree_unflatten([leaf[at : at + 1] for leaf in leaves], form) for at in range(lengths.pop())]


class HeldOut:
    """Compares a module with its start, and remembers the best of its states.

    Args:
        loss: From the module and a batch to the loss.
        batches: What the module is not trained on.
    """

    def __init__(self, loss: Callable[[Any, Any], Tensor], batches: Sequence[Any]) -> None:
        self._loss, self._batches = loss, batches
        self._start: list[float] = []
        self._best: list[float] = []
        self._states: list[dict[str, Any]] = []
        self._step = 0

    def check(self, module: nn.Module, step: int) -> None:
        """Measure a module after a number of steps; 0 is its start."""
        losses = self._losses(module)
        if not self._start:
            self._start = self._best = losses
        elif not sum(losses) < sum(self._best):
            return
        else:
            self._best, self._step = losses, step
        self._states = [*self._states[:1], _copied(module.state_dict())]

    def finish(self, module: nn.Module, *, trained_on: bool) -> Gain:
        """Give the module its best state, or its first one unless the best is clearly better, and return the gain."""
        count = len(self._start)
        gains = [before - after for before, after in zip(self._start, self._best, strict=True)]
        mean = sum(gains) / count
        spread = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / max(1, count - 1) / count)
        before, best = (sum(losses) / count for losses in (self._start, self._best))
        # The smallest of several noisy numbers looks better than it is.
        step = self._step if self._step and mean > max(_ERRORS * spread, _LEAST * before) else 0
        module.load_state_dict(self._states[-1 if step else 0])
        return Gain(before, best if step else before, step, count, trained_on)

    def _losses(self, module: nn.Module) -> list[float]:
        modes = {part: part.training for part in module.modules()}
        module.eval()
        with torch.no_grad():
            losses = [float(self._loss(module, batch)) for batch in self._batches]
        for part, training in modes.items():
            part.training = training
        return [loss if math.isfinite(loss) else math.inf for loss in losses]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if torch.is_tensor(value) else value for name, value in state.items()}
