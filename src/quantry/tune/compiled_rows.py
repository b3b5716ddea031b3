"""Training steps for the rows of a layer with the compiled kernel, in parallel over parts of the rows."""

from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.numerics.kernels import Kernels, RowLayerTask
from quantry.runtime.threads import in_threads, row_parts
from quantry.tune.row_problem import RowProblem

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_COLUMNS = 32
"""The kernel wants rows padded to a multiple of this: two of its widest vectors."""


class CompiledRows:
    """Trains with the compiled kernel; see `NumpyRows` for the arithmetic.

    Args:
        problem: What to train; not changed.
        kernels: The compiled functions.
    """

    def __init__(self, problem: RowProblem, kernels: Kernels) -> None:
        self._kernels = kernels
        self._shape = problem.value.shape
        _, rows, width = self._shape
        self._arrays = _padded(problem, _up(width))
        numbers: dict[str, int] = {"rows": rows, "width": width, "padded": _up(width), "rank": 0, "rank_padded": 0}
        if problem.factor is None:
            self._arrays |= {"gram": self._packed(problem.gram), "factor": np.empty(0, np.float32)}
        else:
            transposed = problem.factor.transpose(0, 2, 1)
            self._arrays |= {"gram": self._packed(transposed), "factor": self._packed(problem.factor)}
            numbers |= {"rank": transposed.shape[1], "rank_padded": _up(transposed.shape[1])}
        numbers |= {"bias_moves": problem.bias_moves, "rounds": problem.floor is not None}
        self._layer = RowLayerTask.of(self._arrays, **numbers)

    def _packed(self, matrices: Single) -> Single:
        """Return matrices ``[groups, lines, columns]`` in the memory order of the kernel."""
        return np.stack([self._kernels.pack_columns(matrix, _up(matrices.shape[2])) for matrix in matrices])

    def advance(self, schedule: Single) -> Float:
        """Make one step per row of the schedule; return the loss before each."""
        schedule = np.ascontiguousarray(schedule, np.float32)
        rows = self._shape[0] * self._shape[1]
        losses = np.empty((rows, len(schedule)))
        in_threads(lambda part: self._kernels.train_rows(self._layer, schedule, losses, part), row_parts(rows))
        # Added row by row, so that the sum does not depend on the number of threads.
        return np.asarray(losses.sum(0))

    def trained(self) -> tuple[Single, Single]:
        """Return the trained values and biases."""
        groups, rows, width = self._shape
        value = self._arrays["value"].reshape(groups, rows, -1)[:, :, :width]
        return value, self._arrays["bias"].reshape(groups, rows)


def _up(columns: int) -> int:
    return -(-columns // _COLUMNS) * _COLUMNS


def _padded(problem: RowProblem, padded: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that the kernel works on; the padding is chosen so that training does not change it."""
    shape = problem.value.shape

    def rows(array: Single, padding: float) -> Single:
        result = np.full((*shape[:2], padded), padding, np.float32)
        result[:, :, : shape[2]] = array
        return result

    grid = problem.bias_grid
    mean = np.zeros((shape[0], padded), np.float32)
    mean[:, : shape[2]] = problem.mean
    rounds = problem.floor is not None
    weights = rows(np.zeros(1, np.float32), 0.0)
    return {
        "cross": rows(problem.cross, 0.0),
        "scale": rows(problem.scale, 1.0),
        "lowest": rows(problem.lowest, 0.0),
        "highest": rows(problem.highest, 0.0),
        "mean": mean,
        # Far below zero: the sigmoid is so small that the padding counts as fully rounded down.
        "value": rows(problem.value, -20.0 if rounds else 0.0),
        "first": weights,
        "second": weights.copy(),
        "floor": weights[:0] if problem.floor is None else rows(problem.floor, 0.0),
        "target": np.ascontiguousarray(problem.target),
        "bias_scale": grid.scale,
        "bias_lowest": grid.lowest,
        "bias_highest": grid.highest,
        "bias": problem.bias.astype(np.float32),
        "bias_first": np.zeros_like(problem.target),
        "bias_second": np.zeros_like(problem.target),
    }
