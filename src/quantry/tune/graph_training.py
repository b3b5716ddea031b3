"""Trains a quantized graph so that some of its tensors approach given targets: the loop of BRECQ, TQT and distillation.

This module imports torch, so it is imported inside functions only.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quantry.execute.trainable_graph import TrainableGraph
from quantry.recipe import DistillLoss, GraphTraining
from quantry.runtime.threads import threads_for

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
        for part in _parts(data.held_out, data.together):
            targets = data.targets(part)
            self.names = tuple(targets)
            for name, target in targets.items():
                power = _by_channel(target).var(1, unbiased=False) * len(part)
                self._power[name] = self._power.get(name, 0.0) + power
            counted += len(part)
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


def fit(graph: TrainableGraph, data: TrainingData, loss: Loss, step: GraphTraining, evaluations: int) -> Fitted:
    """Train the constants and scales of a graph in place and keep the best state that was evaluated.

    Args:
        graph: What to train.
        data: Inputs and targets.
        loss: The loss.
        step: Iterations, batch size, learning rates and seed.
        evaluations: How often the state is evaluated.
    """
    if not graph.constants and not graph.log2_scales:
        return Fitted(0.0, 0.0)
    shown = graph.run(data.inputs(data.held_out[:1]), loss.names, quantized=False)
    with threads_for(step.batch_size * sum(tensor.numel() for tensor in shown.values())):
        return _fit(graph, data, loss, step, evaluations)


def _fit(graph: TrainableGraph, data: TrainingData, loss: Loss, step: GraphTraining, evaluations: int) -> Fitted:
    parameters = [*graph.constants.values(), *graph.log2_scales.values()]
    optimizer = torch.optim.Adam(_groups(graph, step))
    rates = [group["lr"] for group in optimizer.param_groups]
    draws = _draws(data.samples, step)
    period = max(1, step.iterations // evaluations)
    before = best = evaluate(graph, data, loss)
    kept = [parameter.detach().clone() for parameter in parameters]
    for iteration in range(step.iterations):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * _schedule(iteration / step.iterations)
        optimizer.zero_grad()
        batch = next(draws)
        for part in _parts(batch, data.together):
            outputs = graph.run(data.inputs(part), loss.names, quantized=True)
            (loss(outputs, data.targets(part)) * (len(part) / len(batch))).backward()
        optimizer.step()
        if (iteration + 1) % period == 0 or iteration + 1 == step.iterations:
            now = evaluate(graph, data, loss)
            _LOG.debug("iteration %d: loss %.5g", iteration + 1, now)
            if now < best:
                best = now
                kept = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    return Fitted(before, best)


def evaluate(graph: TrainableGraph, data: TrainingData, loss: Loss) -> float:
    """Return the loss over the held-out samples."""
    total = 0.0
    with torch.no_grad():
        for part in _parts(data.held_out, data.together):
            outputs = graph.run(data.inputs(part), loss.names, quantized=True)
            total += float(loss(outputs, data.targets(part))) * len(part)
    return total / len(data.held_out)


def _groups(graph: TrainableGraph, step: GraphTraining) -> list[dict[str, Any]]:
    groups = []
    for tensor in graph.constants.values():
        size = float(tensor.detach().square().mean().sqrt())
        groups.append({"params": [tensor], "lr": step.learning_rate * max(size, 1e-6)})
    groups += [{"params": [tensor], "lr": step.scale_learning_rate} for tensor in graph.log2_scales.values()]
    return groups


def _schedule(part: float) -> float:
    """Return the factor of the learning rate: a short warm-up, then a cosine to zero."""
    return min(1.0, 0.1 + part * 18.0) * 0.5 * (1.0 + float(np.cos(np.pi * part)))


def _draws(samples: Sequence[int], step: GraphTraining) -> Any:
    """Yield batches forever, every sample once per epoch."""
    random = np.random.default_rng(step.seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < step.batch_size:
            waiting += [samples[int(at)] for at in random.permutation(len(samples))]
        batch, waiting = waiting[: step.batch_size], waiting[step.batch_size :]
        yield batch


def _parts(samples: Sequence[int], size: int) -> list[list[int]]:
    return [list(samples[at : at + size]) for at in range(0, len(samples), size)]


def _by_channel(values: Any) -> Any:
    """Return ``[channels, everything else]``; tensors of two axes count as one channel."""
    return values.transpose(0, 1).flatten(1) if values.dim() > 2 else values.reshape(1, -1)
