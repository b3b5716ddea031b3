"""GPTQ's rounding with the compiled kernels, in parallel over parts of the rows; see `column_rounding`."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quantry.numerics.kernels import Kernels, WeightGridTask
from quantry.runtime.threads import in_threads, row_parts

if TYPE_CHECKING:
    from quantry.tune.column_rounding import WeightGrid

Single = npt.NDArray[np.float32]


def feedback_rounded(kernels: Kernels, weight: Single, spread: Single, grid: "WeightGrid") -> Single:
    """Return weights rounded column by column, the error of each compensated by those that follow.

    Args:
        kernels: The compiled functions.
        weight: What to round, ``[groups, rows, width]``.
        spread: How much of the error each later column compensates, ``[groups, width, width]``, contiguous.
        grid: The values to round to.
    """
    rest = np.array(weight, np.float32, order="C")
    result, task = rest.copy(), _task(grid, rest)
    in_threads(lambda rows: kernels.round_with_feedback(task, spread, rest, result, rows), _parts(rest))
    return result


def compiled_sweep(kernels: Kernels, current: Single, slope: Single, gram: Single, grid: "WeightGrid") -> bool:
    """Let each weight in turn take the best value given the others; return whether any changed.

    Args:
        kernels: The compiled functions.
        current: On the grid, ``[groups, rows, width]``, contiguous; changed in place.
        slope: Half the derivative of the error, same shape; overwritten.
        gram: ``[groups, width, width]``, contiguous.
        grid: The values to choose from.
    """
    task = _task(grid, current)
    return any(in_threads(lambda rows: kernels.descend(task, gram, slope, current, rows), _parts(current)))


def _task(grid: "WeightGrid", weight: Single) -> WeightGridTask:
    groups, rows, width = weight.shape
    return WeightGridTask.of((groups, rows, width), grid.scale, grid.lowest, grid.highest)


def _parts(weight: Single) -> list[range]:
    return row_parts(weight.shape[0] * weight.shape[1])
