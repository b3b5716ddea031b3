"""Training on the processor with the exact loss over all samples, from their Gram matrix."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from quantry.numerics.rounding import round_and_clip
from quantry.tune.kept_rows import KeptRows
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.row_problem import RowProblem
from quantry.tune.row_steps import BETAS, RowSteps, row_steps

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

Exponents = Callable[[int], tuple[float, float]]
"""From a step's number to the exponent and the weight of AdaRound's second term then."""


class RowTraining:
    """Trains all rows of a layer; see `Training`.

    Args:
        problem: The layer.
        rows: What is trained.
        exponents: Of AdaRound's second term.
    """

    def __init__(self, problem: LayerProblem, rows: RowProblem, exponents: Exponents = lambda _: (0.0, 0.0)) -> None:
        self._problem, self._exponents = problem, exponents
        self._power = float(problem.quadratic.power.sum())
        self._steps: RowSteps = row_steps(rows)
        # Of the rows themselves nothing is kept but what says how they are written: the other arrays may be large.
        self._floor, self._grid = rows.floor, (rows.scale, rows.lowest, rows.highest)
        self._kept = KeptRows(problem, problem.quadratic.error)

    @property
    def before(self) -> float:
        """The loss of plain rounding."""
        return float(self._kept.before.sum())

    def advance(self, first: int, count: int, rate: float) -> Float:
        """Make steps; return the loss over all samples before each."""
        entries = [(*corrected(number + 1, rate), *self._exponents(number)) for number in range(first, first + count)]
        return self._steps.advance(np.array(entries, np.float32)) + self._power

    def keep(self) -> bool:
        """Judge the constants as they would be written now, keep better rows, and return whether any has moved."""
        self._kept.offer(*self.constants())
        return self._kept.moved

    def result(self) -> LayerConstants:
        """Return the best constants that were seen of each row."""
        return self._problem.choose(self._kept.weight, self._kept.bias)

    def constants(self) -> tuple[Single, Single]:
        """Return weight and bias as they would be written now."""
        value, bias = self._steps.trained()
        scale, lowest, highest = self._grid
        steps = value / scale if self._floor is None else self._floor + (value >= 0)
        weight = round_and_clip(steps, lowest, highest) * scale
        kept = bias if self._floor is None else self._problem.bias
        return weight.astype(np.float32), self._problem.rounded_bias(kept)


def corrected(steps: int, rate: float) -> tuple[float, float]:
    """Return Adam's learning rate and the factor of its second moment after so many steps."""
    return rate / (1.0 - BETAS[0] ** steps), 1.0 / (1.0 - BETAS[1] ** steps)
