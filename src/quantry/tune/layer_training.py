"""What training of single layers has in common: the loop, Adam, the learning rate, early stop and the best state.

This module imports torch, so it is imported inside functions only.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from quantry.recipe import LayerTraining
from quantry.tune.column_rounding import least_squares
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.reconstruction import MiniBatches, Reconstruction, WholeData
from quantry.tune.sample_batches import torch_device
from quantry.tune.walker import LayerVisit

_LOG = logging.getLogger("quantry.tune")

_LARGEST_PRODUCT = 4e8
"""Multiplications in one step above which mini-batches are cheaper than the Gram matrix."""

_NORMALIZATION_DAMPING = 1e-3

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass
class Adam:
    """Kingma and Ba (https://arxiv.org/abs/1412.6980), for one tensor, in place.

    Attributes:
        parameter: What is trained.
    """

    parameter: Any
    _first: Any = field(init=False)
    _second: Any = field(init=False)
    _steps: int = 0

    def __post_init__(self) -> None:
        self._first, self._second = torch.zeros_like(self.parameter), torch.zeros_like(self.parameter)

    def step(self, gradient: Any, rate: float) -> None:
        """Move against a gradient."""
        self._steps += 1
        self._first.mul_(_BETAS[0]).add_(gradient, alpha=1 - _BETAS[0])
        self._second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        spread = self._second.div(1 - _BETAS[1] ** self._steps).sqrt_().add_(_EPSILON)
        self.parameter.addcdiv_(self._first, spread, value=-rate / (1 - _BETAS[0] ** self._steps))


class LayerTrainer:
    """Trains one layer.

    Args:
        visit: Inputs and targets.
        step: The options.
        trains_bias: Whether the bias is trained.
    """

    def __init__(self, visit: LayerVisit, step: LayerTraining, *, trains_bias: bool) -> None:
        self.step = step
        self.problem = LayerProblem(visit, trains_bias)
        self.device = torch_device(step.device)
        torch.manual_seed(visit.seed)

    def closed_form(self) -> LayerConstants | None:
        """Return the constants of a layer whose weight stays float, for which least squares is the best there is."""
        if self.problem.grid is not None:
            return None
        form = self.problem.quadratic
        return self.problem.choose(least_squares(self.problem.weight, form.gram, form.cross, _NORMALIZATION_DAMPING))

    def reconstruction(self) -> tuple[Reconstruction, bool]:
        """Return how the layer is judged, and whether that is by all samples at once."""
        groups, rows, width = self.problem.weight.shape
        whole = self.step.whole_data and not self.step.output_pair and groups * rows * width**2 <= _LARGEST_PRODUCT
        if whole:
            return WholeData(self.problem, self.device), True
        return MiniBatches(self.problem, self.step, self.device), False

    def tensor(self, array: Any) -> Any:
        """Return an array on the device of the training."""
        return torch.tensor(array, device=self.device)

    def loop(
        self,
        advance: Callable[[int, float], float],
        state: Callable[[], tuple[Any, Any]],
        reconstruction: Reconstruction,
        patience_from: int = 0,
    ) -> tuple[Any, Any, float, float]:
        """Train; return the best weight and bias that were judged, the loss of plain rounding and theirs.

        Args:
            advance: Makes a step, given its number and the learning rate, and returns the loss before it.
            state: Gives weight and bias as they would be written now.
            reconstruction: How they are judged.
            patience_from: The first iteration that early stop looks at.
        """
        problem, step = self.problem, self.step
        plain = self.tensor(problem.plain()), self.tensor(problem.rounded_bias(problem.bias))
        before = reconstruction.judge(*plain)
        rate = step.learning_rate
        if step.learning_rate_adjust and before > step.learning_rate_adjust[0]:
            rate = step.learning_rate_adjust[1]
        best, kept = before, plain
        period = max(1, step.iterations // 10)
        log_period = step.log_period or period
        seen, least = 0.0, float("inf")
        for iteration in range(step.iterations):
            loss = advance(iteration, rate)
            seen += loss
            if (iteration + 1) % log_period == 0:
                _LOG.debug("layer %s: iteration %d: loss %.5g", problem.visit.layer.name, iteration + 1, loss)
            if (iteration + 1) % period and iteration + 1 < step.iterations:
                continue
            now = state()
            judged = reconstruction.judge(*now)
            if judged < best:
                best, kept = judged, tuple(part.clone() for part in now)
            if step.early_stop and iteration >= patience_from:
                if not seen < least:
                    break
                least = seen
            seen = 0.0
        return kept[0], kept[1], before, best

    def finish(self, trained: tuple[Any, Any, float, float], *, whole: bool) -> LayerConstants:
        """Return the constants to keep, never worse than plain rounding."""
        weight, bias = (part.detach().cpu().numpy() for part in trained[:2])
        if whole:
            return self.problem.choose(weight, bias)
        return self.problem.take(weight, bias, trained[2], trained[3])
