"""AdaRound: learns for every weight whether to round it up or down.

Nagel et al. (https://arxiv.org/abs/2004.10568). With ``h = clip(1.2 sigmoid(v) - 0.1, 0, 1)`` the weight is
``scale (floor(w / scale) + h)``; the loss is the output error plus ``lambda sum(1 - |2h - 1|^beta)``, where beta falls
from 20 to 2 along a cosine and the second term sets in after a warm start. Gradients are written by hand.

This module imports torch, so it is imported inside functions only.
"""

import math
from typing import Any

import torch

from quantry.recipe import AdaRound
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_training import Adam, LayerTrainer
from quantry.tune.layerwise import tune_layers
from quantry.tune.task import TuneTask
from quantry.tune.threads import threads_for
from quantry.tune.tuned import Tuned
from quantry.tune.walker import LayerVisit

_LOW, _HIGH = -0.1, 1.1


def run(task: TuneTask, step: AdaRound) -> Tuned:
    """Round all layers.

    Args:
        task: What is tuned.
        step: The options.
    """
    return tune_layers(task, step, "adaround", lambda visit: round_layer(visit, step))


def round_layer(visit: LayerVisit, step: AdaRound) -> LayerConstants:
    """Return the constants of one layer with trained rounding.

    Args:
        visit: Inputs and targets.
        step: The options.
    """
    trainer = LayerTrainer(visit, step, trains_bias=False)
    settled = trainer.closed_form()
    if settled is not None:
        return settled
    reconstruction, whole = trainer.reconstruction()
    rounding = _Rounding(trainer, step)
    bias = trainer.tensor(trainer.problem.rounded_bias(trainer.problem.bias))

    def advance(iteration: int, rate: float) -> float:
        loss, by_weight, _ = reconstruction.slope(rounding.soft(), bias)
        rounding.move(by_weight, iteration, rate)
        return float(loss)

    warm = int(step.warm_start * step.iterations)
    with threads_for(trainer.problem.weight.size):
        trained = trainer.loop(advance, lambda: (rounding.hard(), bias), reconstruction, warm)
    return trainer.finish(trained, whole=whole)


class _Rounding:
    """One variable for each weight."""

    def __init__(self, trainer: LayerTrainer, step: AdaRound) -> None:
        grid = trainer.problem.grid
        assert grid is not None
        self._step = step
        parts = (grid.scale, grid.lowest, grid.highest)
        self._scale, self._lowest, self._highest = (trainer.tensor(part) for part in parts)
        exact = trainer.tensor(trainer.problem.weight) / self._scale
        self._floor = torch.floor(exact)
        part = ((exact - self._floor) - _LOW) / (_HIGH - _LOW)
        self._variable = torch.log(part / (1.0 - part))
        self._adam = Adam(self._variable)

    def soft(self) -> Any:
        """Return the weights with rounding half done."""
        self._sigmoid = torch.sigmoid(self._variable)
        self._up = (self._sigmoid * (_HIGH - _LOW) + _LOW).clamp_(0.0, 1.0)
        self._levels = self._floor + self._up
        return torch.clamp(self._levels, self._lowest, self._highest) * self._scale

    def hard(self) -> Any:
        """Return the weights rounded."""
        levels = self._floor + (self._variable >= 0)
        return torch.clamp(levels, self._lowest, self._highest) * self._scale

    def move(self, by_weight: Any, iteration: int, rate: float) -> None:
        """Make a step, given the derivative by the soft weights."""
        inside = (self._levels >= self._lowest) & (self._levels <= self._highest)
        slope = by_weight * self._scale * inside
        warm = self._step.warm_start * self._step.iterations
        if iteration >= warm:
            first, last = self._step.beta_range
            past = (iteration - warm) / max(1.0, self._step.iterations - warm)
            beta = last + 0.5 * (first - last) * (1.0 + math.cos(past * math.pi))
            centered = 2.0 * self._up - 1.0
            away = centered.abs().pow_(beta - 1.0).mul_(centered.sign())
            slope -= away.mul_(2.0 * beta * self._step.regularization)
        open_ = (self._up > 0.0) & (self._up < 1.0)
        slope *= self._sigmoid * (1.0 - self._sigmoid) * (_HIGH - _LOW) * open_
        self._adam.step(slope, rate)
