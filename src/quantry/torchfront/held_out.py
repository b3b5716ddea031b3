"""Keeps training honest: what it returns is better on batches it was not trained on, or is what it started from."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from quantry.errors import DataError, RecipeError
from quantry.torchfront.quantized_module import evaluation_mode

_SHARE, _MOST = 5, 8
"""One batch in five is held out, at most eight: more would only cost time."""

_ERRORS, _LEAST = 1.5, 0.005
"""A gain must exceed this many standard errors of itself, and this share of the loss."""

_FEW, _LARGE = 5, 0.5
"""The standard error of fewer numbers is hardly known, so there a gain of this share of the loss is enough as well."""

_TINY = 1e-12
"""Added to the mean square of an output, which may be zero."""

CHECKS = 8
"""How often a run is compared with its start."""


@dataclass(frozen=True)
class HeldOutImprovement:
    """What training gained on batches it was not trained on.

    Attributes:
        before: Mean loss of the module that training started from.
        after: Mean loss of the module that it returned.
        step: The step that it returned, from 1 on; 0 for the start, because no step was better.
        batches: Number of batches compared; single samples count as batches of one.
        trained_on: Whether there was only one batch, which was trained on as well.
        by_sample: Whether the batches were compared sample by sample.
    """

    before: float
    after: float
    step: int
    batches: int
    trained_on: bool = False
    by_sample: bool = False

    def __str__(self) -> str:
        singular, plural = ("sample", "samples") if self.by_sample else ("batch", "batches")
        counted = f"{self.batches} held-out {singular if self.batches == 1 else plural}"
        basis = "the training batch" if self.trained_on else counted
        if not self.step:
            return f"training did not lower the loss on {basis}, {self.before:.4g}: the module is as it was before"
        change = 100 * (1 - self.after / self.before) if self.before else 0.0
        return f"training lowered the loss on {basis} from {self.before:.4g} to {self.after:.4g}, by {change:.0f} %"


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
        self._taken = 0
        if held_out is not None:
            if not isinstance(held_out, Iterable):
                raise DataError(f"held_out must be a list of batches or None, got {type(held_out).__name__}; in qat")
            self.held_out = list(held_out)
        elif isinstance(batches, Sequence):
            indices = set(range(len(batches))[_SHARE - 1 :: _SHARE][:_MOST] or range(len(batches))[-1:])
            self.held_out = [batches[index] for index in sorted(indices)]
            self.trained_on = len(batches) == 1
            if not self.trained_on:
                self._source = [batch for index, batch in enumerate(batches) if index not in indices]
        elif _shuffles(batches):
            self._take_indices(batches)
        else:
            self._take_first()

    def _take_first(self) -> None:
        """Hold out the first batches, and skip them in every pass."""
        count = len(self._source) if isinstance(self._source, Sized) else 1
        self._started = iter(self._source)
        self.held_out = list(islice(self._started, min(_MOST, max(1, count // _SHARE))))
        self._skipped = self._taken = len(self.held_out)

    def _take_indices(self, loader: Any) -> None:
        """Hold out the samples of some batches, drawn once: every pass mixes all samples."""
        # A sampler may be endless, and need not know its length.
        count = len(loader.batch_sampler) if isinstance(loader.batch_sampler, Sized) else _SHARE
        share = min(_MOST, max(1, count // _SHARE))
        drawn = [list(indices) for indices in islice(loader.batch_sampler, share + 1)]
        index_batches = drawn[:share]
        if len(drawn) == 1:
            index_batches = [drawn[0][: max(1, len(drawn[0]) // _SHARE)]]
            self.trained_on = len(drawn[0]) == 1
        self._taken = len(index_batches)
        self.held_out = [loader.collate_fn([loader.dataset[at] for at in indices]) for indices in index_batches]
        if not self.trained_on:
            self._source = _without(loader, {at for indices in index_batches for at in indices})

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for batch in self._started:
            count += 1
            yield batch
        while True:
            count_before_pass = count
            for batch in islice(iter(self._source), self._skipped, None):
                count += 1
                yield batch
            if count == count_before_pass:
                if self._taken and not count:  # there are no others
                    count, self._taken, self._skipped, self.trained_on = self._taken, 0, 0, True
                    yield from self.held_out
                    continue
                read = count + self._taken
                available = f"{read} that can be read only once, as from a generator; make a list" if read else "none"
                raise DataError(
                    f"training needs at least one batch, and must read all repeatedly, got {available}; in qat"
                )


def _shuffles(batches: Any) -> bool:
    """Return whether batches are a loader of a data set with indices whose order is not fixed."""
    return (
        isinstance(batches, DataLoader)
        and batches.batch_sampler is not None
        and not isinstance(batches.dataset, IterableDataset)
        and not (type(batches.batch_sampler) is BatchSampler and isinstance(batches.sampler, SequentialSampler))
    )


class _Remaining:
    """The indices of a sampler, or its batches of them, without those that are held out."""

    def __init__(self, indices: Any, held_out: set[Any]) -> None:
        self._indices, self._held_out = indices, held_out

    def __iter__(self) -> Iterator[Any]:
        for entry in self._indices:
            if isinstance(entry, list | tuple):
                remaining = [at for at in entry if at not in self._held_out]
                if remaining:
                    yield remaining
            elif entry not in self._held_out:
                yield entry


def _without(loader: Any, held_out: set[Any]) -> Any:
    """Return a copy of a loader, with all its settings, that leaves out some samples."""
    sampler, batch_sampler = _Remaining(loader.sampler, held_out), _Remaining(loader.batch_sampler, held_out)
    if type(loader.batch_sampler) is BatchSampler:
        remaining = sum(1 for _ in islice(sampler, loader.batch_size))
        # Whole batches again, unless the rest is less than one.
        batch_sampler = BatchSampler(sampler, loader.batch_size, loader.drop_last and remaining >= loader.batch_size)
    loader_copy = copy.copy(loader)
    # A loader does not let its samplers be replaced, but no pass over the copy has begun.
    loader_copy.__dict__.update(sampler=sampler, batch_sampler=batch_sampler, _iterator=None)
    return loader_copy


def single_samples(batch: Any) -> list[Any]:
    """Return the samples of a batch as batches of one; a batch without a common first axis is returned as it is."""
    leaves, form = tree_flatten(batch)
    lengths = {leaf.shape[0] if torch.is_tensor(leaf) and leaf.dim() else 0 for leaf in leaves}
    if len(lengths) != 1 or lengths == {0}:
        return [batch]
    return [tree_unflatten([leaf[at : at + 1] for leaf in leaves], form) for at in range(lengths.pop())]


def output_errors(
    teacher: nn.Module, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
) -> tuple[Callable[[Any, Any], Tensor], list[Any]]:
    """Return a loss that compares a module with its teacher, and batches for it, which hold the teacher's results.

    Squared errors are relative to the mean square of each output over all calls, not over one: otherwise a sample whose
    output is about zero would decide alone.

    Args:
        teacher: The float model.
        calls: Positional and keyword arguments of each call.
    """
    targets = [_results(teacher, call) for call in calls]
    sizes = [
        torch.stack([output.square().mean() for output in outputs]).mean() for outputs in zip(*targets, strict=True)
    ]

    def loss(module: nn.Module, batch: Any) -> Tensor:
        call, expected = batch
        results = _results(module, call)
        if [output.shape for output in results] != [output.shape for output in expected]:
            return torch.tensor(math.inf)  # a number of results that depends on the values
        triples = zip(results, expected, sizes, strict=True)
        return torch.stack([(ours - theirs).square().mean() / (size + _TINY) for ours, theirs, size in triples]).mean()

    return loss, list(zip(calls, targets, strict=True))


def _results(module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Tensor]:
    arguments, keywords = call
    with torch.no_grad():
        leaves = tree_leaves(module(*arguments, **keywords))
    return [leaf.float() for leaf in leaves if torch.is_tensor(leaf) and leaf.numel()]


@dataclass(frozen=True)
class _Measured:
    """A state of a module, with its losses on the held-out batches."""

    step: int
    losses: list[float]
    state: dict[str, Any]

    @property
    def mean(self) -> float:
        return sum(self.losses) / len(self.losses)

    def is_clearly_better_than(self, reference: "_Measured") -> bool:
        """Return whether the losses are lower by more than chance explains."""
        count = len(self.losses)
        gains = [theirs - ours for ours, theirs in zip(self.losses, reference.losses, strict=True)]
        mean = sum(gains) / count
        if count < _FEW and mean > _LARGE * abs(reference.mean):
            return True
        spread = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / max(1, count - 1) / count)
        return mean > max(_ERRORS * spread, _LEAST * abs(reference.mean))


class HeldOut:
    """Compares a module with its start, and remembers the start, the best and the last of its states.

    Args:
        loss: From the module and a batch to the loss.
        batches: What the module is not trained on.
        by_sample: Whether these are single samples.
    """

    def __init__(self, loss: Callable[[Any, Any], Tensor], batches: Sequence[Any], *, by_sample: bool = False) -> None:
        self._loss, self._batches, self._by_sample = loss, batches, by_sample
        self._start: _Measured | None = None

    def check(self, module: nn.Module, step: int) -> None:
        """Measure a module after a number of steps; the first call measures its start."""
        state = module.state_dict().items()
        copied = {name: value.clone() if torch.is_tensor(value) else value for name, value in state}
        self._last = _Measured(step, self._losses(module), copied)
        if self._start is None:
            self._start = self._best = self._last
        elif self._last.mean < self._best.mean:
            self._best = self._last

    def finish(self, module: nn.Module, *, trained_on: bool) -> HeldOutImprovement:
        """Give the module its last state, a clearly better earlier one, or its start if none is better than that."""
        assert self._start is not None
        start, best, last = self._start, self._best, self._last
        # The smallest of several noisy numbers looks better than it is, and the last step has the lowest rate.
        order = (best, last) if best.is_clearly_better_than(last) else (last, best)
        kept_state = next((candidate for candidate in order if candidate.is_clearly_better_than(start)), start)
        module.load_state_dict(kept_state.state)
        return HeldOutImprovement(
            start.mean, kept_state.mean, kept_state.step, len(start.losses), trained_on, self._by_sample
        )

    def _losses(self, module: nn.Module) -> list[float]:
        with evaluation_mode(module), torch.no_grad():
            losses = [one_number(self._loss(module, batch)) for batch in self._batches]
        return [loss if math.isfinite(loss) else math.inf for loss in losses]


def one_number(value: Any) -> float:
    """Return the number in what a loss returned.

    Raises:
        RecipeError: It is not a tensor with one number.
    """
    if not torch.is_tensor(value) or value.numel() != 1:
        description = f"one of shape {list(value.shape)}" if torch.is_tensor(value) else type(value).__name__
        raise RecipeError(f"a loss must return one number as a tensor, got {description}; take its mean; in qat")
    return float(value.detach())
