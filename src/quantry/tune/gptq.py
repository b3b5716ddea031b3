"""Rounding with error feedback, layer by layer: one pass over the samples, no training."""

from quantry.recipe import Gptq
from quantry.tune.column_rounding import damped, descend, least_squares, round_with_feedback
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layerwise import tune_layers
from quantry.tune.task import TuneTask
from quantry.tune.tuned import Tuned
from quantry.tune.walker import LayerVisit


def run(task: TuneTask, step: Gptq) -> Tuned:
    """Round all layers.

    Args:
        task: What is tuned.
        step: The options.
    """
    return tune_layers(task, step, "gptq", lambda visit: round_layer(visit, step))


def round_layer(visit: LayerVisit, step: Gptq) -> LayerConstants:
    """Return the constants of one layer, rounded so that its output error is small.

    Args:
        visit: Inputs and targets.
        step: The options.
    """
    problem = LayerProblem(visit, step.update_bias, step.compensate)
    form = problem.quadratic
    goal = least_squares(problem.weight, form.gram, form.cross, step.damping) if step.compensate else problem.weight
    if problem.grid is None:
        return problem.choose(goal)
    if problem.matrix.of_tokens:
        # What the range of a weight cuts off is far more than what rounding changes. Other weights of its row can make
        # up for it on the few tokens where its input is large, and spoil the row for all others.
        goal = problem.grid.cut_off(goal)
    gram = damped(form.gram, step.damping)
    rounded = round_with_feedback(goal, gram, problem.grid, step.block_size, ordered=step.order_by_activation)
    cross = gram @ goal.transpose(0, 2, 1)
    return problem.choose(descend(rounded, gram, cross, problem.grid, step.descent_sweeps))
