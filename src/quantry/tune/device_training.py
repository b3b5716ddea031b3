"""Training on a GPU with the exact loss over all samples; nothing but losses leaves the GPU before the end.

This module imports torch, so it is imported inside functions only.
"""

import numpy as np
import numpy.typing as npt
import torch

from quantry.execute.sample_batches import torch_device
from quantry.recipe import LayerTraining
from quantry.tune.fused_rows import FusedRows
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.row_training import Exponents, corrected
from quantry.tune.tensor_quadratic import device_form
from quantry.tune.tensor_rows import tensor_rows

Float = npt.NDArray[np.float64]


class DeviceTraining:
    """Trains all rows of a layer; see `Training`.

    Args:
        problem: The layer.
        step: The options.
        exponents: Of AdaRound's second term; None trains as AdaQuant does.
    """

    def __init__(self, problem: LayerProblem, step: LayerTraining, exponents: Exponents | None) -> None:
        device = torch_device(step.device)
        self._problem, self._exponents = problem, exponents or (lambda _: (0.0, 0.0))
        self._form = device_form(problem, device)
        self._rows = tensor_rows(problem, self._form, device, rounds=exponents is not None)
        self._steps = FusedRows(self._rows)
        self._power = float(self._form.power.sum())
        plain = torch.from_numpy(np.array(problem.plain())).to(device)
        bias = torch.from_numpy(np.array(problem.rounded_bias(problem.bias))).to(device)
        self._before = self._form.error(plain, bias)
        self._judged = self._before
        self._kept = plain, bias, self._before

    @property
    def before(self) -> float:
        """The loss of plain rounding."""
        return float(self._before.sum())

    def advance(self, first: int, count: int, rate: float) -> Float:
        """Make steps; return the loss over all samples before each."""
        entries = [(*corrected(number + 1, rate), *self._exponents(number)) for number in range(first, first + count)]
        return self._steps.advance(np.array(entries, np.float32)) + self._power

    def keep(self) -> bool:
        """Judge the constants as they would be written now, keep better rows, and return whether any has moved."""
        value, bias = self._steps.trained()
        weight = self._rows.written(value)
        old_weight, old_bias, best = self._kept
        bias = self._rows.rounded_bias(bias) if self._problem.bias_moves else old_bias
        judged = self._form.error(weight, bias)
        better = judged < best
        self._kept = (
            torch.where(better[:, :, None], weight, old_weight),
            torch.where(better, bias, old_bias),
            torch.where(better, judged, best),
        )
        moved, self._judged = not torch.equal(judged, self._judged), judged
        return moved

    def result(self) -> LayerConstants:
        """Return the best constants that were seen of each row."""
        weight, bias, best = (part.cpu().numpy() for part in self._kept)
        return self._problem.settled(weight, bias, self._before.cpu().numpy(), best)
