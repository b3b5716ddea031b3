"""AdaRound and AdaQuant: train the rounding of a layer's weights so that its output error is small.

AdaRound, Nagel et al. (https://arxiv.org/abs/2004.10568), learns for every weight whether to round it up or down. With
``h = clip(1.2 sigmoid(v) - 0.1, 0, 1)`` the weight is ``scale (floor(w / scale) + h)``. The loss is the output error
plus ``lambda sum(1 - |2h - 1|^beta)``, which pushes every h to 0 or 1: beta falls from 20 to 2 along a cosine, and the
term is switched on after a warm start.

AdaQuant, Hubara et al. (https://arxiv.org/abs/2006.10518), trains the weights themselves, and on request the bias.
Gradients pass straight through the rounding and stop where a weight saturates. Scales are not trained.

The output error of all samples is a quadratic form of each row of weights (`quantry.tune.quadratic_form`), so a step
costs one product with the Gram matrix, whatever the number of samples. The two algorithms share everything: the rows
(`quantry.tune.row_problem`), the loop in this module with its schedule, early stop and best rows, and the backends:

- `quantry.tune.row_backends`: the NumPy reference and the compiled kernel;
- `quantry.tune.gpu_rows`: torch tensors on a GPU;
- `quantry.tune.mini_batches`: torch with mini-batches, for the options whose loss is no quadratic form.
"""

import logging
import math
from importlib import util
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.errors import MissingExtraError
from quantry.recipe import AdaQuant, AdaRound
from quantry.runtime.threads import one_blas_thread
from quantry.tune.arrays import where
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layers import LayerConstants
from quantry.tune.layerwise import LayerVisit, tune_layers
from quantry.tune.quadratic_form import least_squares
from quantry.tune.row_backends import BETAS, RowBackend, cpu_backend
from quantry.tune.task import Tuned, TuneTask

_LOG = logging.getLogger("quantry.tune")

Float = npt.NDArray[np.float64]
Step = AdaRound | AdaQuant

_LARGEST_PRODUCT = 2e9
"""Multiplications of one step above which mini-batches are cheaper than products with the Gram matrix."""

_NORMALIZATION_DAMPING = 1e-3

# How often, at most, the loop rounds the constants and compares them with the best rows.
_EVALUATIONS = 10


def run(task: TuneTask, step: Step) -> Tuned:
    """Train all layers.

    Args:
        task: What is tuned.
        step: The options; their type selects the algorithm.
    """
    title = "adaround" if isinstance(step, AdaRound) else "adaquant"
    return tune_layers(task, step, title, lambda visit: train_layer(visit, step))


def train_layer(visit: LayerVisit, step: Step) -> LayerConstants:
    """Return the trained constants of one layer, no row of them worse than plain rounding.

    Args:
        visit: Inputs and targets.
        step: The options.

    Raises:
        MissingExtraError: torch is needed and not installed.
    """
    trains_bias = isinstance(step, AdaQuant) and step.update_bias
    problem = LayerProblem(visit, trains_bias, trained=True)
    if problem.grid is None:
        # The weight of a normalization stays float: least squares is the best there is.
        form = problem.quadratic
        return problem.choose(least_squares(problem.weight, form.gram, form.cross, _NORMALIZATION_DAMPING))
    return train(problem, step, _backend(problem, step))


def _backend(problem: LayerProblem, step: Step) -> RowBackend:
    """Return where and how the layer is trained."""
    rounds = isinstance(step, AdaRound)
    uses_form = _uses_quadratic_form(problem, step)
    if uses_form and step.device == "cpu":
        return cpu_backend(problem, rounds=rounds)
    if not _has_torch():
        raise MissingExtraError(
            f"{type(step).__name__} with mini-batches or on a GPU needs torch, which is not installed; in tune; "
            "install quantry[torch], or train on the CPU with whole_data and without output_pair"
        )
    if uses_form:
        from quantry.tune.gpu_rows import gpu_backend

        return gpu_backend(problem, step.device, rounds=rounds)
    from quantry.tune.mini_batches import mini_batch_backend

    return mini_batch_backend(problem, step, rounds=rounds)


def _uses_quadratic_form(problem: LayerProblem, step: Step) -> bool:
    """Return whether the loss is that of all samples at once, from their Gram matrix."""
    if not step.whole_data or step.output_pair:
        return False
    groups, rows, width = problem.weight.shape
    # Few positions make a Gram matrix of low rank, which costs two products with a factor; see `low_rank`.
    operations = groups * rows * width * min(width, 3 * (problem.positions + 1))
    return operations <= _LARGEST_PRODUCT or not _has_torch()


def train(problem: LayerProblem, step: Step, backend: RowBackend) -> LayerConstants:
    """Return the best constants that training has seen of each row.

    The loop evaluates the constants as they would be written every tenth of the iterations, which is also when it may
    stop early.

    Args:
        problem: The layer.
        step: Iterations, learning rate, schedule and early stop.
        backend: Makes the steps.
    """
    best = _BestRows(problem, backend)
    rate = step.learning_rate
    if step.learning_rate_adjust and best.before > step.learning_rate_adjust[0]:
        rate = step.learning_rate_adjust[1]
    with one_blas_thread():
        _loop(problem, step, backend, best, rate)
    return best.result()


def _loop(problem: LayerProblem, step: Step, backend: RowBackend, best: "_BestRows", rate: float) -> None:
    period = max(1, step.iterations // _EVALUATIONS)
    log_period = step.log_period or period
    total, least, done = 0.0, float("inf"), 0
    while done < step.iterations:
        end = min((done // period + 1) * period, (done // log_period + 1) * log_period, step.iterations)
        losses = backend.steps.advance(schedule(step, done, end - done, rate)) + backend.constant
        done, total = end, total + float(losses.sum())
        if done % log_period == 0:
            _LOG.debug("layer %s: iteration %d: loss %.5g", problem.visit.layer.name, done, losses[-1])
        if done % period and done < step.iterations:
            continue
        has_moved = best.update()
        if isinstance(step, AdaRound):
            # The training loss rises by itself once the regularization is on, and the loss of the rounded weights falls
            # only when most weights are pushed all the way. So wait until no weight switches sides any more.
            converged = done > int(step.warm_start * step.iterations) and not has_moved
        else:
            converged = not total < least
        if step.early_stop and converged:
            return
        total, least = 0.0, total


def schedule(step: Step, first: int, count: int, rate: float) -> Float:
    """Return the schedule of some steps, ``[count, 4]``; see `quantry.tune.row_backends` for its columns.

    Args:
        step: The options.
        first: Number of the first step.
        count: How many.
        rate: The learning rate.
    """
    entries = [(*corrected(number + 1, rate), *regularization(step, number)) for number in range(first, first + count)]
    return np.array(entries, np.float64)


def corrected(steps: int, rate: float) -> tuple[float, float]:
    """Return Adam's learning rate and the factor of its second moment, both with bias correction.

    Args:
        steps: How many steps have been made, this one included.
        rate: The learning rate.
    """
    return rate / (1.0 - BETAS[0] ** steps), 1.0 / (1.0 - BETAS[1] ** steps)


def regularization(step: Step, number: int) -> tuple[float, float]:
    """Return exponent and weight of AdaRound's regularization in a step; 0 and 0 during the warm start.

    Args:
        step: The options; AdaQuant has no regularization.
        number: The step.
    """
    if not isinstance(step, AdaRound):
        return 0.0, 0.0
    warm = step.warm_start * step.iterations
    if number < warm:
        return 0.0, 0.0
    first, last = step.beta_range
    progress = (number - warm) / max(1.0, step.iterations - warm)
    return last + 0.5 * (first - last) * (1.0 + math.cos(progress * math.pi)), step.regularization


class _BestRows:
    """The best constants that training has seen of each row; plain rounding is the first candidate.

    Arrays are those of the backend: they stay on a GPU until `result`.
    """

    def __init__(self, problem: LayerProblem, backend: RowBackend) -> None:
        self._problem, self._backend = problem, backend
        self._weight: Any = backend.load(problem.plain())
        self._bias: Any = backend.load(problem.rounded_bias(problem.bias))
        self._before = self._best = self._last = backend.error(self._weight, self._bias)

    @property
    def before(self) -> float:
        """The loss of plain rounding."""
        return float(self._before.sum())

    def update(self) -> bool:
        """Keep the rows that are better now; return whether any row differs from the last update."""
        backend, problem = self._backend, self._problem
        weight, bias = backend.steps.written()
        rounded = problem.rounded_bias(backend.store(bias) if problem.bias_moves else problem.bias)
        bias = backend.load(rounded)
        errors = backend.error(weight, bias)
        # Rows with the same loss to the last bit are the same rows.
        has_moved, self._last = bool((errors != self._last).any()), errors
        better = errors < self._best
        self._best = where(better, errors, self._best)
        self._weight = where(better[:, :, None], weight, self._weight)
        self._bias = where(better, bias, self._bias)
        return has_moved

    def result(self) -> LayerConstants:
        """Return the constants of the layer."""
        store = self._backend.store
        weight, bias, before, best = map(store, (self._weight, self._bias, self._before, self._best))
        if self._backend.per_row:
            return self._problem.settled(weight, bias, before, best)
        return self._problem.take(weight, bias, float(before.sum()), float(best.sum()))


def _has_torch() -> bool:
    return util.find_spec("torch") is not None
