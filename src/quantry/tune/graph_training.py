"""Trains a quantized graph so that some of its tensors approach given targets: the loop of BRECQ, TQT and distillation.

This module imports torch, so it is imported inside functions only.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from quantry.errors import ModelError
from quantry.execute.trainable_graph import InterpretablePart, TrainableGraph, interpretable_part
from quantry.execute.training_loop import TrainingLoop
from quantry.memo import Blob, checkpoint
from quantry.recipe import DistillLoss, GraphTraining
from quantry.runtime.progress import tell
from quantry.runtime.threads import threads_for
from quantry.tune.task import TuneTask

_LOG = logging.getLogger("quantry.tune")

Tensors = dict[str, Any]

_CHANNEL_FLOOR = 0.1
"""Share of a tensor's mean power that is added to each channel's, so that nearly silent channels do not dominate."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Inputs and targets of a training.

    Attributes:
        inputs: Returns the inputs of some samples as one batch, by their numbers.
        targets: Returns the targets of these samples.
        samples: Numbers of the samples to train on.
        held_out: Numbers of the samples that decide which state is kept.
        together: How many samples fit in one batch.
    """

    inputs: Callable[[Sequence[int]], Tensors]
    targets: Callable[[Sequence[int]], Tensors]
    samples: Sequence[int]
    held_out: Sequence[int]
    together: int


def trained_part(task: TuneTask, title: str) -> InterpretablePart:
    """Return the part of a model that can be trained.

    Args:
        task: What is tuned.
        title: The algorithm's name.

    Raises:
        ModelError: Even the first operators are not interpretable.
    """
    part = interpretable_part(task.model.model)
    if not part.targets:
        obstacles = "; ".join(map(str, part.notes))
        raise ModelError(f"{title} needs a model with interpretable operators, got none; {obstacles}; in tune")
    return part


@dataclass(frozen=True)
class Fitted:
    """The loss before and after a training.

    Attributes:
        before: Loss of the initial state.
        after: Loss of the state that was kept.
    """

    before: float
    after: float


class Loss:
    """Distance of tensors from their targets, each channel in units of its standard deviation.

    Args:
        kind: Which distance.
        data: Samples and targets, from which the standard deviations are computed.
    """

    def __init__(self, kind: DistillLoss, data: TrainingData) -> None:
        self._kind = kind
        self._power: Tensors = {}
        self.names: tuple[str, ...] = ()
        counted = 0
        for batch in _parts(data.held_out, data.together):
            targets = data.targets(batch)
            self.names = tuple(targets)
            for name, target in targets.items():
                power = _by_channel(target).var(1, unbiased=False) * len(batch)
                self._power[name] = self._power.get(name, 0.0) + power
            counted += len(batch)
        for name, power in self._power.items():
            mean = power / counted
            self._power[name] = mean + _CHANNEL_FLOOR * mean.mean() + 1e-12

    def __call__(self, outputs: Tensors, targets: Tensors) -> Any:
        """Return the mean loss of a batch."""
        return torch.stack([self._of(name, outputs[name], targets[name]) for name in self.names]).mean()

    def _of(self, name: str, output: Any, target: Any) -> Any:
        if self._kind is DistillLoss.KL:
            goal = torch.log_softmax(target.flatten(1), 1)
            return (goal.exp() * (goal - torch.log_softmax(output.flatten(1), 1))).sum(1).mean()
        error = _by_channel(output - target)
        power = self._power[name][:, None]
        if self._kind is DistillLoss.L1:
            return (error.abs() / power.sqrt()).mean()
        return (error.square() / power).mean()


def fit(
    graph: TrainableGraph, data: TrainingData, loss: Loss, step: GraphTraining, evaluations: int, title: str = ""
) -> Fitted:
    """Train the constants and scales of a graph in place and keep the best state that was evaluated.

    Args:
        graph: What to train.
        data: Inputs and targets.
        loss: The loss.
        step: Iterations, batch size, learning rates and seed.
        evaluations: How often the state is evaluated.
        title: Name of a long training. It says where it is, and its state is stored a few times, so that an interrupted
            run resumes there.
    """
    if not graph.constants and not graph.log2_scales:
        return Fitted(0.0, 0.0)
    outputs = graph.run(data.inputs(data.held_out[:1]), quantized=False)
    with threads_for(step.batch_size * sum(outputs[name].numel() for name in loss.names)):
        training = _Training(graph, data, loss, step, evaluations, title)
        return training.run()


class _Training:
    """One training: its parameters, its optimizer and the best state so far."""

    def __init__(
        self, graph: TrainableGraph, data: TrainingData, loss: Loss, step: GraphTraining, evaluations: int, title: str
    ) -> None:
        self._graph, self._data, self._loss, self._step, self._title = graph, data, loss, step, title
        self._parameters = [*graph.constants.values(), *graph.log2_scales.values()]
        sizes = (float(tensor.detach().square().mean().sqrt()) for tensor in graph.constants.values())
        rates = [step.learning_rate * max(size, 1e-6) for size in sizes]
        rates += [step.scale_learning_rate] * len(graph.log2_scales)
        groups = [([parameter], rate) for parameter, rate in zip(self._parameters, rates, strict=True)]
        self._loop = TrainingLoop(groups, lambda number: _rate_factor(number / step.iterations))
        self._period = max(1, step.iterations // evaluations)
        self._draws = _draws(data.samples, step)
        self._iteration = 0
        self._best = 0.0
        self._kept = [parameter.detach().clone() for parameter in self._parameters]

    def run(self) -> Fitted:
        """Train, and leave the best state in the graph."""
        before = self._best = evaluate(self._graph, self._data, self._loss)
        count = _STORED_PARTS if self._title else 1
        for number in range(1, count + 1):
            end = self._step.iterations * number // count
            if number == count:
                self._train(end)
            else:
                self._resume(checkpoint(f"{self._title} part {number} of {count}", _State, partial(self._state, end)))
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._kept, strict=True):
                parameter.copy_(value)
        return Fitted(before, self._best)

    def _train(self, end: int) -> None:
        step, data = self._step, self._data
        while self._iteration < end:
            batch = next(self._draws)
            self._loop.step(
                self._iteration,
                (
                    loss_of(self._graph, data, self._loss, numbers) * (len(numbers) / len(batch))
                    for numbers in _parts(batch, data.together)
                ),
            )
            self._iteration += 1
            if self._iteration % self._period == 0 or self._iteration == step.iterations:
                now = evaluate(self._graph, data, self._loss)
                _LOG.debug("iteration %d: loss %.5g", self._iteration, now)
                if self._title:
                    tell(f"{self._title}: {self._iteration} of {step.iterations} iterations, loss {now:.4g}")
                if now < self._best:
                    self._best = now
                    self._kept = [parameter.detach().clone() for parameter in self._parameters]

    def _state(self, end: int) -> "_State":
        """Train up to an iteration and return everything that the rest depends on."""
        self._train(end)
        arrays: dict[str, np.ndarray] = {}
        for number, (parameter, best) in enumerate(zip(self._parameters, self._kept, strict=True)):
            # A parameter that no output depends on has no moments.
            moments = self._loop.optimizer.state.get(parameter, {})
            none = torch.zeros_like(best)
            values = (parameter.detach(), best, moments.get("exp_avg", none), moments.get("exp_avg_sq", none))
            arrays |= {f"{number}/{name}": value.cpu().numpy() for name, value in zip(_PARTS, values, strict=True)}
        return _State(arrays, end, self._best)

    def _resume(self, state: "_State") -> None:
        """Continue from a state; nothing changes if it was computed just now."""
        if self._iteration == state.iteration:
            return
        for _ in range(self._iteration, state.iteration):
            next(self._draws)
        self._iteration, self._best = state.iteration, state.best
        with torch.no_grad():
            for number, parameter in enumerate(self._parameters):
                now, best, mean, square = (
                    torch.from_numpy(np.array(state.arrays[f"{number}/{name}"])).to(parameter.device) for name in _PARTS
                )
                parameter.copy_(now)
                self._kept[number] = best
                count = torch.tensor(float(state.iteration))
                self._loop.optimizer.state[parameter] = {"step": count, "exp_avg": mean, "exp_avg_sq": square}


# A state has four times the bytes of the weights, so it is stored a few times only.
_STORED_PARTS = 4
_PARTS = ("now", "kept", "mean", "square")


@dataclass(frozen=True, eq=False)
class _State:
    """An unfinished training.

    Attributes:
        arrays: Parameters, those of the best state, and moments of the optimizer.
        iteration: Iterations done.
        best: Loss of the best state.
    """

    arrays: Mapping[str, np.ndarray]
    iteration: int
    best: float

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(meta={"iteration": self.iteration, "best": self.best}, arrays=dict(self.arrays))

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        return cls(blob.arrays, int(blob.meta["iteration"]), float(blob.meta["best"]))


def evaluate(graph: TrainableGraph, data: TrainingData, loss: Loss) -> float:
    """Return the loss over the held-out samples."""
    total = 0.0
    with torch.no_grad():
        for numbers in _parts(data.held_out, data.together):
            total += float(loss_of(graph, data, loss, numbers)) * len(numbers)
    return total / len(data.held_out)


def loss_of(graph: TrainableGraph, data: TrainingData, loss: Loss, numbers: Sequence[int]) -> Any:
    """Return the loss of one batch, by the numbers of its samples."""
    return loss(graph.run(data.inputs(numbers), quantized=True), data.targets(numbers))


def _rate_factor(progress: float) -> float:
    """Return the factor of the learning rate: a short warm-up, then a cosine to zero."""
    return min(1.0, 0.1 + progress * 18.0) * 0.5 * (1.0 + float(np.cos(np.pi * progress)))


def _draws(samples: Sequence[int], step: GraphTraining) -> Any:
    """Yield batches forever, every sample once per epoch."""
    random = np.random.default_rng(step.seed)
    pending: list[int] = []
    while True:
        while len(pending) < step.batch_size:
            pending += [samples[int(at)] for at in random.permutation(len(samples))]
        batch, pending = pending[: step.batch_size], pending[step.batch_size :]
        yield batch


def _parts(samples: Sequence[int], size: int) -> list[list[int]]:
    return [list(samples[at : at + size]) for at in range(0, len(samples), size)]


def _by_channel(values: Any) -> Any:
    """Return ``[channels, everything else]``; tensors of two axes count as one channel."""
    return values.transpose(0, 1).flatten(1) if values.dim() > 2 else values.reshape(1, -1)
