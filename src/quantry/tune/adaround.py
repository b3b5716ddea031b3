"""AdaRound: learns for every weight whether to round it up or down.

Nagel et al. (https://arxiv.org/abs/2004.10568). With ``h = clip(1.2 sigmoid(v) - 0.1, 0, 1)`` the weight is
``scale (floor(w / scale) + h)``; the loss is the output error plus ``lambda sum(1 - |2h - 1|^beta)``, where beta falls
from 20 to 2 along a cosine and the second term sets in after a warm start. Gradients are written by hand.
"""

import math

from quantry.recipe import AdaRound
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_training import LayerTrainer, Training
from quantry.tune.layerwise import tune_layers
from quantry.tune.row_problem import rounding_rows
from quantry.tune.row_training import RowTraining
from quantry.tune.task import TuneTask
from quantry.tune.tuned import Tuned
from quantry.tune.walker import LayerVisit


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

    def exponents(number: int) -> tuple[float, float]:
        return second_term(step, number)

    def rows() -> Training:
        return RowTraining(trainer.problem, rounding_rows(trainer.problem), exponents)

    def tensors() -> Training:
        from quantry.tune.fused_rows import fused
        from quantry.tune.tensor_training import TensorRounding

        if trainer.whole and fused() is not None:
            from quantry.tune.device_training import DeviceTraining

            return DeviceTraining(trainer.problem, step, exponents)
        return TensorRounding(trainer.problem, step, exponents, whole=trainer.whole)

    return trainer.train(rows, tensors, int(step.warm_start * step.iterations))


def second_term(step: AdaRound, number: int) -> tuple[float, float]:
    """Return exponent and weight of the second term in a step; 0 and 0 before it sets in.

    Args:
        step: The options.
        number: Of the step.
    """
    warm = step.warm_start * step.iterations
    if number < warm:
        return 0.0, 0.0
    first, last = step.beta_range
    past = (number - warm) / max(1.0, step.iterations - warm)
    return last + 0.5 * (first - last) * (1.0 + math.cos(past * math.pi)), step.regularization
