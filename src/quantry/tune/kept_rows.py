"""The best constants that training has seen of each row."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from quantry.tune.layer_problem import LayerProblem

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]


class KeptRows:
    """Keeps rows; plain rounding is the first candidate.

    Args:
        problem: The layer.
        judge: From weight and bias to the loss of each row, or of all as ``[1, 1]``.

    Attributes:
        before: Loss of plain rounding.
        best: Loss of what is kept.
        weight: ``[groups, rows, width]``.
        bias: ``[groups, rows]``.
    """

    def __init__(self, problem: LayerProblem, judge: Callable[[Single, Single], Float]) -> None:
        self._judge = judge
        self.weight, self.bias = problem.plain(), problem.rounded_bias(problem.bias)
        self.before = self.best = judge(self.weight, self.bias)

    def offer(self, weight: Single, bias: Single) -> float:
        """Take rows that are better than those kept, and return the loss of all rows that were offered."""
        judged = self._judge(weight, bias)
        better = judged < self.best
        self.best = np.where(better, judged, self.best)
        self.weight = np.where(better[:, :, None], weight, self.weight)
        self.bias = np.where(better, bias, self.bias)
        return float(judged.sum())
