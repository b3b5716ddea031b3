"""AdaQuant: trains weights, and biases on request, through their rounding.

Hubara et al. (https://arxiv.org/abs/2006.10518), without the training of scales; gradients pass straight through the
rounding and stop where a weight saturates.

This module imports torch, so it is imported inside functions only.
"""

from typing import Any

import torch

from quantry.recipe import AdaQuant
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_training import Adam, LayerTrainer
from quantry.tune.layerwise import tune_layers
from quantry.tune.task import TuneTask
from quantry.tune.threads import threads_for
from quantry.tune.tuned import Tuned
from quantry.tune.walker import LayerVisit


def run(task: TuneTask, step: AdaQuant) -> Tuned:
    """Train all layers.

    Args:
        task: What is tuned.
        step: The options.
    """
    return tune_layers(task, step, "adaquant", lambda visit: train_layer(visit, step))


def train_layer(visit: LayerVisit, step: AdaQuant) -> LayerConstants:
    """Return the trained constants of one layer.

    Args:
        visit: Inputs and targets.
        step: The options.
    """
    trainer = LayerTrainer(visit, step, trains_bias=step.update_bias)
    settled = trainer.closed_form()
    if settled is not None:
        return settled
    problem, grid = trainer.problem, trainer.problem.grid
    assert grid is not None
    reconstruction, whole = trainer.reconstruction()
    scale, lowest, highest = (trainer.tensor(part) for part in (grid.scale, grid.lowest, grid.highest))
    weight, bias = trainer.tensor(problem.weight), trainer.tensor(problem.bias)
    by_weight, by_bias = Adam(weight), Adam(bias)

    def rounded() -> Any:
        return torch.clamp(torch.round(weight / scale), lowest, highest) * scale

    def rounded_bias() -> Any:
        return trainer.tensor(problem.rounded_bias(bias.cpu().numpy()))

    def advance(_: int, rate: float) -> float:
        loss, weight_slope, bias_slope = reconstruction.slope(rounded(), rounded_bias())
        levels = torch.round(weight / scale)
        by_weight.step(weight_slope * ((levels >= lowest) & (levels <= highest)), rate)
        if problem.bias_moves:
            by_bias.step(bias_slope, rate)
        return float(loss)

    with threads_for(problem.weight.size):
        trained = trainer.loop(advance, lambda: (rounded(), rounded_bias()), reconstruction)
    return trainer.finish(trained, whole=whole)
