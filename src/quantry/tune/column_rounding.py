"""Rounds a matrix so that a quadratic form of the error stays small.

Frantar et al., "GPTQ" (https://arxiv.org/abs/2210.17323): columns are rounded one after the other, and what is lost in
one is made up for in those that follow, as far as their inputs go together. Afterwards, coordinate descent on the
integers: each in turn takes the best value for what the others are now.

Arrays have the shape ``[groups, rows, width]``; all groups are done at once.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.numerics import kernels
from quantry.numerics.rounding import round_and_clip
from quantry.tune.compiled_rounding import compiled_sweep, feedback_rounded

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

# Parts of the mean of the diagonal; 1 makes any positive semidefinite matrix with rounding errors definite.
_MORE_DAMPING = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True, eq=False)
class WeightGrid:
    """The values that weights can take.

    Attributes:
        scale: Of each weight, ``[groups, rows, width]`` or what broadcasts to it.
        lowest: Smallest integer less the zero point, likewise.
        highest: Largest integer less the zero point, likewise.
    """

    scale: Single
    lowest: Single
    highest: Single

    def round(self, weight: Single, part: slice = slice(None)) -> Single:
        """Return the nearest values on the grid.

        Args:
            weight: Weights, or some columns of them.
            part: Which columns.
        """
        scale, lowest, highest = (_part(values, part) for values in (self.scale, self.lowest, self.highest))
        levels = round_and_clip(weight / scale, lowest, highest)
        return np.asarray(levels * scale, np.float32)

    def cut_off(self, weight: Single) -> Single:
        """Return weights moved to the nearest end of the grid where they are beyond it."""
        return np.asarray(np.clip(weight, self.lowest * self.scale, self.highest * self.scale), np.float32)


def damped(gram: Any, damping: float) -> Any:
    """Return Gram matrices, arrays or tensors, with a part of their mean diagonal added to the diagonal."""
    result = gram + 0.0
    # Every so many numbers of the flat matrices there is one of the diagonal.
    diagonal = result.reshape(len(result), -1)[:, :: gram.shape[1] + 1]
    mean = diagonal.mean(1)[:, None]
    diagonal += damping * (mean + (mean <= 0.0))
    return result


def least_squares(weight: Single, gram: Float, cross: Float, damping: float) -> Single:
    """Return the weights with the smallest error, held near to the given ones.

    Args:
        weight: Where to stay near, ``[groups, rows, width]``.
        gram: ``[groups, width, width]``.
        cross: ``[groups, width, rows]``.
        damping: How near, as a part of the mean of the Gram matrix's diagonal.
    """
    full = damped(gram, damping)
    held = np.einsum("gkk->gk", full) - np.einsum("gkk->gk", gram)
    right = cross + held[:, :, None] * weight.transpose(0, 2, 1)
    return np.asarray(np.linalg.solve(full, right).transpose(0, 2, 1), np.float32)


def round_with_feedback(weight: Single, gram: Float, grid: WeightGrid, block: int, *, ordered: bool) -> Single:
    """Return the weights rounded column by column with error feedback.

    Args:
        weight: What to round, ``[groups, rows, width]``.
        gram: Positive definite, ``[groups, width, width]``.
        grid: The values to round to.
        block: Columns whose effect on the rest is applied together.
        ordered: Take columns with the largest diagonal first; only where there is one group.
    """
    if ordered and gram.shape[0] == 1:
        order = np.argsort(-np.diagonal(gram[0]), kind="stable")
        back = np.argsort(order)
        shuffled = WeightGrid(*(_columns(part, order) for part in (grid.scale, grid.lowest, grid.highest)))
        inner = round_with_feedback(weight[:, :, order], gram[:, order][:, :, order], shuffled, block, ordered=False)
        return inner[:, :, back]
    spread = _spread(gram)
    compiled = kernels.loaded()
    if compiled is not None:
        return feedback_rounded(compiled, weight, spread, grid)
    rest = weight.astype(np.float32).copy()
    result, lost = np.empty_like(rest), np.empty_like(rest)
    width = rest.shape[2]
    for start in range(0, width, block):
        end = min(start + block, width)
        for column in range(start, end):
            part = slice(column, column + 1)
            result[:, :, part] = grid.round(rest[:, :, part], part)
            lost[:, :, part] = weight[:, :, part] - result[:, :, part]
            rest[:, :, column + 1 : end] += lost[:, :, part] * spread[:, None, column, column + 1 : end]
        # Column by column, as the compiled kernel adds; one matrix product would be faster and round differently.
        for column in range(start, end):
            rest[:, :, end:] += lost[:, :, column : column + 1] * spread[:, None, column, end:]
    return result


def _spread(gram: Float) -> Single:
    """Return, in each row, how much of the error of a column those that follow make up for.

    These are the numbers above the diagonal of U in ``gram = U D U^T`` with ones on U's diagonal. Feeding back the
    whole error of a column with them rounds as feeding back what is lost of the corrected one with the Cholesky factor
    of the inverse does (Chee et al., "QuIP", https://arxiv.org/abs/2307.13304, theorem 6), without an inverse.
    """
    upper = _cholesky(gram[:, ::-1, ::-1])[:, ::-1, ::-1]
    return np.ascontiguousarray(upper / np.einsum("gkk->gk", upper)[:, None, :], np.float32)


def _cholesky(gram: Float) -> Float:
    """Return the Cholesky factor, after more damping where rounding errors leave a matrix indefinite.

    Few samples, or inputs that hardly vary around a large mean, give a Gram matrix whose smallest eigenvalues are pure
    rounding error and may be negative. More damping makes GPTQ round more like plain rounding, which is right where
    the samples say nothing.
    """
    for extra in (0.0, *_MORE_DAMPING):
        try:
            return np.linalg.cholesky(damped(gram, extra) if extra else gram)
        except np.linalg.LinAlgError:
            continue
    # Not a number, or infinite: no damping helps, and the identity rounds every column by itself.
    return np.broadcast_to(np.eye(gram.shape[1]), gram.shape)


def descend(rounded: Single, gram: Float, cross: Float, grid: WeightGrid, sweeps: int) -> Single:
    """Return rounded weights after sweeps of coordinate descent; the error never rises.

    Args:
        rounded: On the grid, ``[groups, rows, width]``.
        gram: ``[groups, width, width]``.
        cross: ``[groups, width, rows]``.
        grid: The values to choose from.
        sweeps: How often to go through all columns.
    """
    current = np.array(rounded, np.float32, order="C")
    single = np.ascontiguousarray(gram, np.float32)
    goal = cross.transpose(0, 2, 1).astype(np.float32)
    compiled = kernels.loaded()
    sweep = _numpy_sweep if compiled is None else functools.partial(compiled_sweep, compiled)
    # The slope is computed from scratch for each sweep, so that rounding errors do not accumulate.
    while sweeps > 0 and sweep(current, current @ single - goal, single, grid):
        sweeps -= 1
    return current


def _numpy_sweep(current: Single, slope: Single, gram: Single, grid: WeightGrid) -> bool:
    """Do what `compiled_sweep` does, in the same order."""
    # The smallest normal float: a column that is always zero has no curvature.
    diagonal = np.maximum(np.einsum("gkk->gk", gram), np.finfo(np.float32).tiny)
    changed = False
    for column in range(current.shape[2]):
        part = slice(column, column + 1)
        best = current[:, :, part] - slope[:, :, part] / diagonal[:, None, part]
        chosen = grid.round(best, part)
        step = chosen - current[:, :, part]
        if not step.any():
            continue
        changed = True
        # Not where the step is 0: a chosen zero may have another sign.
        current[:, :, part] = np.where(step == 0.0, current[:, :, part], chosen)
        slope[:, :, column + 1 :] += step * gram[:, None, column, column + 1 :]
    return changed


def _columns(part: Single, order: npt.NDArray[np.int64]) -> Single:
    return part if part.shape[2] == 1 else part[:, :, order]


def _part(values: Single, part: slice) -> Single:
    return values if values.shape[2] == 1 else values[:, :, part]
