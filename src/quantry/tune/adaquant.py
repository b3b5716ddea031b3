"""AdaQuant: trains weights, and biases on request, through their rounding.

Hubara et al. (https://arxiv.org/abs/2006.10518), without the training of scales; gradients pass straight through the
rounding and stop where a weight saturates.
"""

from quantry.recipe import AdaQuant
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_training import LayerTrainer, Training
from quantry.tune.layerwise import tune_layers
from quantry.tune.row_problem import weight_rows
from quantry.tune.row_training import RowTraining
from quantry.tune.task import TuneTask
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

    def rows() -> Training:
        return RowTraining(trainer.problem, weight_rows(trainer.problem))

    def tensors() -> Training:
        from quantry.tune.fused_rows import fused
        from quantry.tune.tensor_training import TensorQuantizing

        if trainer.whole and fused() is not None:
            from quantry.tune.device_training import DeviceTraining

            return DeviceTraining(trainer.problem, step, None)
        return TensorQuantizing(trainer.problem, step, whole=trainer.whole)

    return trainer.train(rows, tensors)
