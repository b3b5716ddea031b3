"""GPTQ: round the columns of a weight one after the other and let later columns compensate each error.

Frantar et al. (https://arxiv.org/abs/2210.17323). The error of a rounded column is added to the columns that follow, as
far as their inputs are correlated with its own. Afterwards coordinate descent goes over the integers: each takes the
best value given the current others. One pass over the samples gathers the quadratic form; nothing is trained.

The two loops have a NumPy reference in this module and a compiled kernel with the same bytes. On a GPU the quadratic
form is gathered there (`quantry.tune.gpu_form`), which is most of the work. The loops stay on the CPU: their columns
depend on each other, so a GPU would start thousands of tiny kernels in turn.

Arrays have the shape ``[groups, rows, width]``; all groups are rounded at once.
"""

import functools

import numpy as np
import numpy.typing as npt

from quantry.numerics import kernels
from quantry.numerics.kernels import Kernels, WeightGridTask
from quantry.recipe import Gptq
from quantry.runtime.threads import blas_threads_for, in_threads, row_parts
from quantry.tune.layer_problem import LayerProblem, WeightGrid
from quantry.tune.layers import LayerConstants
from quantry.tune.layerwise import LayerVisit, tune_layers
from quantry.tune.quadratic_form import damped, least_squares
from quantry.tune.task import Tuned, TuneTask

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

# Shares of the mean diagonal; adding the whole mean makes any positive semidefinite matrix definite despite rounding.
_MORE_DAMPING = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def run(task: TuneTask, step: Gptq) -> Tuned:
    """Round all layers.

    Args:
        task: What is tuned.
        step: The options.
    """
    return tune_layers(task, step, "gptq", lambda visit: round_layer(visit, step))


def round_layer(visit: LayerVisit, step: Gptq) -> LayerConstants:
    """Return the constants of one layer, rounded so that its output error is small.

    Args:
        visit: Inputs and targets.
        step: The options.
    """
    problem = LayerProblem(visit, step.update_bias, step.compensate)
    with blas_threads_for(problem.matrix.width):
        return _round(problem, step)


def _round(problem: LayerProblem, step: Gptq) -> LayerConstants:
    form = problem.quadratic
    goal = least_squares(problem.weight, form.gram, form.cross, step.damping) if step.compensate else problem.weight
    if problem.grid is None:
        return problem.choose(goal)
    if problem.matrix.of_tokens:
        # Clipping a weight loses far more than rounding does. Other weights of its row could compensate that for the
        # few tokens with a large input, and would make the row worse for all other tokens.
        goal = problem.grid.clip(goal)
    gram = damped(form.gram, step.damping)
    rounded = round_with_feedback(goal, gram, problem.grid, step.block_size, ordered=step.order_by_activation)
    cross = gram @ goal.transpose(0, 2, 1)
    weight = descend(rounded, gram, cross, problem.grid, step.descent_sweeps)
    if problem.bias_moves and problem.bias_params is not None:
        return problem.choose(*_with_rounded_bias(problem, weight, gram, cross, step.descent_sweeps))
    return problem.choose(weight)


def _with_rounded_bias(
    problem: LayerProblem, weight: Single, gram: Float, cross: Float, sweeps: int
) -> tuple[Single, Single]:
    """Return a weight and a rounded bias that go together.

    A bias of 8 bits cannot take up the whole mean error of a row. The weights compensate what is left of it: with
    inputs whose mean is not zero, some of them take a neighbouring value.

    Args:
        problem: The layer.
        weight: On the grid, for a bias that is not rounded.
        gram: What the weight was rounded with, about the means of the inputs.
        cross: Likewise.
        sweeps: Sweeps of coordinate descent.
    """
    form, grid = problem.quadratic, problem.grid
    assert grid is not None
    bias = problem.rounded_bias(form.best_bias(weight))
    mean = form.column_mean
    around_zero = gram + mean[:, :, None] * mean[:, None, :]
    missing = form.target_mean - bias
    goal = cross + mean[:, :, None] * missing[:, None, :]
    return descend(weight, around_zero, goal, grid, sweeps), bias


def round_with_feedback(weight: Single, gram: Float, grid: WeightGrid, block: int, *, ordered: bool) -> Single:
    """Return the weights rounded column by column with error feedback.

    Args:
        weight: What to round, ``[groups, rows, width]``.
        gram: Positive definite, ``[groups, width, width]``.
        grid: The values to round to.
        block: Columns whose errors are applied to the rest together; changes the speed of the reference only.
        ordered: Round columns with the largest diagonal first, if there is one group.
    """
    if ordered and gram.shape[0] == 1:
        order = np.argsort(-np.diagonal(gram[0]), kind="stable")
        back = np.argsort(order)
        shuffled = grid.columns(order)
        inner = round_with_feedback(weight[:, :, order], gram[:, order][:, :, order], shuffled, block, ordered=False)
        return inner[:, :, back]
    spread = _spread(gram)
    compiled = kernels.loaded()
    if compiled is not None:
        return _compiled_feedback(compiled, weight, spread, grid)
    return _numpy_feedback(weight, spread, grid, block)


def descend(rounded: Single, gram: Float, cross: Float, grid: WeightGrid, sweeps: int) -> Single:
    """Return rounded weights after sweeps of coordinate descent; the error never rises.

    Args:
        rounded: On the grid, ``[groups, rows, width]``.
        gram: ``[groups, width, width]``.
        cross: ``[groups, width, rows]``.
        grid: The values to choose from.
        sweeps: How often to go over all columns, unless nothing changes any more.
    """
    current = np.array(rounded, np.float32, order="C")
    single = np.ascontiguousarray(gram, np.float32)
    goal = cross.transpose(0, 2, 1).astype(np.float32)
    compiled = kernels.loaded()
    sweep = _numpy_sweep if compiled is None else functools.partial(_compiled_sweep, compiled)
    # The slope is computed from scratch for each sweep, so that rounding errors do not accumulate.
    while sweeps > 0 and sweep(current, current @ single - goal, single, grid):
        sweeps -= 1
    return current


def _spread(gram: Float) -> Single:
    """Return in each row how much of a column's error the columns that follow compensate.

    These are the numbers above the diagonal of U in ``gram = U D U^T`` with a unit diagonal of U. Feeding back the
    whole error of a column with them is the same as feeding back the error of the corrected column with the Cholesky
    factor of the inverse (Chee et al., "QuIP", https://arxiv.org/abs/2307.13304, theorem 6), without an inverse.
    """
    upper = _cholesky(gram[:, ::-1, ::-1])[:, ::-1, ::-1]
    return np.ascontiguousarray(upper / np.einsum("gkk->gk", upper)[:, None, :], np.float32)


def _cholesky(gram: Float) -> Float:
    """Return the Cholesky factor, with more damping if rounding errors leave a matrix indefinite.

    Few samples, or inputs that hardly vary around a large mean, give a Gram matrix whose smallest eigenvalues are pure
    rounding error and may be negative. More damping makes GPTQ round more like plain rounding, which is right where
    the samples carry no information.
    """
    for extra in (0.0, *_MORE_DAMPING):
        try:
            return np.linalg.cholesky(damped(gram, extra) if extra else gram)
        except np.linalg.LinAlgError:
            continue
    # NaN or infinite: no damping helps, and the identity rounds every column on its own.
    return np.broadcast_to(np.eye(gram.shape[1]), gram.shape)


def _numpy_feedback(weight: Single, spread: Single, grid: WeightGrid, block: int) -> Single:
    """Do what `_compiled_feedback` does, in the same order."""
    remaining = weight.astype(np.float32).copy()
    result, lost = np.empty_like(remaining), np.empty_like(remaining)
    width = remaining.shape[2]
    for start in range(0, width, block):
        end = min(start + block, width)
        for column in range(start, end):
            columns = slice(column, column + 1)
            result[:, :, columns] = grid.round(remaining[:, :, columns], columns)
            lost[:, :, columns] = weight[:, :, columns] - result[:, :, columns]
            remaining[:, :, column + 1 : end] += lost[:, :, columns] * spread[:, None, column, column + 1 : end]
        # Column by column, as the compiled kernel adds; one matrix product would be faster and round differently.
        for column in range(start, end):
            remaining[:, :, end:] += lost[:, :, column : column + 1] * spread[:, None, column, end:]
    return result


def _compiled_feedback(compiled: Kernels, weight: Single, spread: Single, grid: WeightGrid) -> Single:
    """Return the weights rounded column by column.

    Args:
        compiled: The compiled functions.
        weight: What to round, ``[groups, rows, width]``.
        spread: How much of its error each later column compensates, ``[groups, width, width]``, contiguous.
        grid: The values to round to.
    """
    remaining = np.array(weight, np.float32, order="C")
    result, task = remaining.copy(), _kernel_task(grid, remaining)
    in_threads(lambda rows: compiled.round_with_feedback(task, spread, remaining, result, rows), _row_parts(remaining))
    return result


def _numpy_sweep(current: Single, slope: Single, gram: Single, grid: WeightGrid) -> bool:
    """Do what `_compiled_sweep` does, in the same order."""
    # The smallest normal float: a column that is always zero has no curvature.
    diagonal = np.maximum(np.einsum("gkk->gk", gram), np.finfo(np.float32).tiny)
    has_moved = False
    for column in range(current.shape[2]):
        columns = slice(column, column + 1)
        best = current[:, :, columns] - slope[:, :, columns] / diagonal[:, None, columns]
        rounded = grid.round(best, columns)
        step = rounded - current[:, :, columns]
        if not step.any():
            continue
        has_moved = True
        # A step of 0 keeps the old value: the chosen zero may have another sign.
        current[:, :, columns] = np.where(step == 0.0, current[:, :, columns], rounded)
        slope[:, :, column + 1 :] += step * gram[:, None, column, column + 1 :]
    return has_moved


def _compiled_sweep(compiled: Kernels, current: Single, slope: Single, gram: Single, grid: WeightGrid) -> bool:
    """Let each weight in turn take the best value given the others; return whether any changed.

    Args:
        compiled: The compiled functions.
        current: On the grid, ``[groups, rows, width]``, contiguous; changed in place.
        slope: Half the derivative of the error, same shape; overwritten.
        gram: ``[groups, width, width]``, contiguous.
        grid: The values to choose from.
    """
    task = _kernel_task(grid, current)
    return any(in_threads(lambda rows: compiled.descend(task, gram, slope, current, rows), _row_parts(current)))


def _kernel_task(grid: WeightGrid, weight: Single) -> WeightGridTask:
    groups, rows, width = weight.shape
    return WeightGridTask.of((groups, rows, width), grid.scale, grid.lowest, grid.highest)


def _row_parts(weight: Single) -> list[range]:
    return row_parts(weight.shape[0] * weight.shape[1])
