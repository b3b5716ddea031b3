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
        moved: Whether what was offered last differs from what was offered before it.
    """

    def __init__(self, problem: LayerProblem, judge: Callable[[Single, Single], Float]) -> None:
        self._judge = judge
        self.weight, self.bias = problem.plain(), problem.rounded_bias(problem.bias)
        self.before = self.best = self._judged = judge(self.weight, self.bias)
        self.moved = True

    def offer(self, weight: Single, bias: Single) -> None:
        """Take rows that are better than those kept."""
        judged = self._judge(weight, bias)
        # The same loss of every row to the last bit is that of the same rows.
        self.moved, self._judged = not np.array_equal(judged, self._judged), judged
        better = judged < self.best
        self.best = np.where(better, judged, self.best)
        self.weight = np.where(better[:, :, None], weight, self.weight)
        self.bias = np.where(better, bias, self.bias)
