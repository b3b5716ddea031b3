"""Rounds a matrix so that a quadratic form of the error stays small.

Frantar et al., "GPTQ" (https://arxiv.org/abs/2210.17323): columns are rounded one after the other, and what is lost in
one is made up for in those that follow, as far as their inputs go together. Afterwards, coordinate descent on the
integers: each in turn takes the best value for what the others are now.

Arrays have the shape ``[groups, rows, width]``; all groups are done at once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.numerics import kernels
from quantry.tune.compiled_rounding import feedback_rounded, sweep

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]


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
        levels = np.clip(np.rint(weight / scale), lowest, highest)
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
    result = np.empty_like(rest)
    width = rest.shape[2]
    for start in range(0, width, block):
        end = min(start + block, width)
        errors = np.empty_like(rest[:, :, start:end])
        for column in range(start, end):
            part = slice(column, column + 1)
            result[:, :, part] = grid.round(rest[:, :, part], part)
            lost = weight[:, :, part] - result[:, :, part]
            errors[:, :, column - start] = lost[:, :, 0]
            rest[:, :, column + 1 : end] += lost * spread[:, None, column, column + 1 : end]
        rest[:, :, end:] += errors @ spread[:, start:end, end:]
    return result


def _spread(gram: Float) -> Single:
    """Return, in each row, how much of the error of a column those that follow make up for.

    These are the numbers above the diagonal of U in ``gram = U D U^T`` with ones on U's diagonal. Feeding back the
    whole error of a column with them rounds as feeding back what is lost of the corrected one with the Cholesky factor
    of the inverse does (Chee et al., "QuIP", https://arxiv.org/abs/2307.13304, theorem 6), without an inverse.
    """
    upper = np.linalg.cholesky(gram[:, ::-1, ::-1])[:, ::-1, ::-1]
    return np.ascontiguousarray(upper / np.einsum("gkk->gk", upper)[:, None, :], np.float32)


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
    if compiled is not None:
        # The slope is computed anew for each sweep, so that rounding errors do not add up.
        while sweeps > 0 and sweep(compiled, current, current @ single - goal, single, grid):
            sweeps -= 1
        return current
    diagonal = np.maximum(np.einsum("gkk->gk", single), np.finfo(np.float32).tiny)
    width, block = current.shape[2], 64
    for _ in range(sweeps):
        changed = False
        for start in range(0, width, block):
            end = min(start + block, width)
            slope = current @ single[:, :, start:end] - goal[:, :, start:end]
            for column in range(start, end):
                part = slice(column, column + 1)
                here = column - start
                best = current[:, :, part] - (slope[:, :, here] / diagonal[:, None, column])[:, :, None]
                step = grid.round(best, part) - current[:, :, part]
                if step.any():
                    changed = True
                    current[:, :, part] += step
                    slope += step * single[:, None, column, start:end]
        # Sums of steps leave the grid by float32 rounding; put every value back on it.
        current = grid.round(current)
        if not changed:
            break
    return current


def _columns(part: Single, order: npt.NDArray[np.int64]) -> Single:
    return part if part.shape[2] == 1 else part[:, :, order]


def _part(values: Single, part: slice) -> Single:
    return values if values.shape[2] == 1 else values[:, :, part]
