"""What training of single layers has in common: where it runs, its loop, early stop and the best state."""

import logging
from collections.abc import Callable
from importlib import util
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantry.errors import MissingExtraError
from quantry.recipe import LayerTraining
from quantry.runtime.threads import one_blas_thread
from quantry.tune.column_rounding import least_squares
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.walker import LayerVisit

_LOG = logging.getLogger("quantry.tune")

_LARGEST_PRODUCT = 2e9
"""Multiplications in one step above which mini-batches are cheaper than the Gram matrix."""

_NORMALIZATION_DAMPING = 1e-3

Float = npt.NDArray[np.float64]


class Training(Protocol):
    """Constants that are being trained."""

    def advance(self, first: int, count: int, rate: float) -> Float:
        """Make steps.

        Args:
            first: Number of the first one.
            count: How many.
            rate: The learning rate.

        Returns:
            The loss before each: squared error summed over channels, averaged over positions.
        """
        ...

    @property
    def before(self) -> float:
        """The loss of plain rounding."""
        ...

    def keep(self) -> bool:
        """Judge the constants as they would be written now, and keep better rows.

        Returns:
            Whether they differ from those that were judged before.
        """
        ...

    def result(self) -> LayerConstants:
        """Return the best constants that were seen, plain rounding among them."""
        ...


class LayerTrainer:
    """Trains one layer.

    Args:
        visit: Inputs and targets.
        step: The options.
        trains_bias: Whether the bias is trained.
    """

    def __init__(self, visit: LayerVisit, step: LayerTraining, *, trains_bias: bool) -> None:
        self.step = step
        self.problem = LayerProblem(visit, trains_bias, trained=True)

    @property
    def whole(self) -> bool:
        """Whether the loss is that of all samples at once, from their Gram matrix."""
        if not self.step.whole_data or self.step.output_pair:
            return False
        groups, rows, width = self.problem.weight.shape
        # Few positions make a Gram matrix of low rank; see `quantry.tune.row_problem.low_rank`.
        operations = groups * rows * width * min(width, 3 * (self.problem.positions + 1))
        return operations <= _LARGEST_PRODUCT or not _has_torch()

    def closed_form(self) -> LayerConstants | None:
        """Return the constants of a layer whose weight stays float, for which least squares is the best there is."""
        if self.problem.grid is not None:
            return None
        form = self.problem.quadratic
        return self.problem.choose(least_squares(self.problem.weight, form.gram, form.cross, _NORMALIZATION_DAMPING))

    def train(
        self, rows: Callable[[], Training], tensors: Callable[[], Training], rounds_from: int | None = None
    ) -> LayerConstants:
        """Return the trained constants, never worse than plain rounding.

        Args:
            rows: Makes the training on the processor with all samples at once.
            tensors: Makes any other, with torch.
            rounds_from: The iteration from which weights are drawn to either side. The loss in training rises by itself
                then, and that of weights as they would be written falls only when most are drawn all the way, so that
                early stop begins there and waits until no weight goes to its other side any more.

        Raises:
            MissingExtraError: torch is needed and not installed.
        """
        settled = self.closed_form()
        if settled is not None:
            return settled
        if self.whole and self.step.device == "cpu":
            training = rows()
        elif _has_torch():
            training = tensors()
        else:
            raise MissingExtraError(
                f"{type(self.step).__name__} with mini-batches or on a GPU needs torch, which is not installed; in "
                "tune; install quantry[torch], or train on the processor with whole_data and without output_pair"
            )
        with one_blas_thread():
            return self._loop(training, rounds_from)

    def _loop(self, training: Training, rounds_from: int | None) -> LayerConstants:
        problem, step = self.problem, self.step
        rate = step.learning_rate
        if step.learning_rate_adjust and training.before > step.learning_rate_adjust[0]:
            rate = step.learning_rate_adjust[1]
        period = max(1, step.iterations // 10)
        log_period = step.log_period or period
        seen, least, done = 0.0, float("inf"), 0
        while done < step.iterations:
            stops = (done // period + 1) * period, (done // log_period + 1) * log_period, step.iterations
            losses = training.advance(done, min(stops) - done, rate)
            done, seen = min(stops), seen + float(losses.sum())
            if done % log_period == 0:
                _LOG.debug("layer %s: iteration %d: loss %.5g", problem.visit.layer.name, done, losses[-1])
            if done % period and done < step.iterations:
                continue
            moved = training.keep()
            stays = not seen < least if rounds_from is None else done > rounds_from and not moved
            if step.early_stop and stays:
                break
            seen, least = 0.0, seen
        return training.result()


def _has_torch() -> bool:
    return util.find_spec("torch") is not None
