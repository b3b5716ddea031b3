"""The rows of a layer as independent problems: one quadratic form per row, and the values that are trained.

The output of a linear layer is one row of weights per channel, and the error of a channel depends on its own row only.
AdaRound and AdaQuant therefore train all rows at once without any of them affecting another.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.numerics.rounding import round_and_clip
from quantry.tune.layer_problem import LayerProblem

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

LOW, HIGH = -0.1, 1.1
"""AdaRound's soft rounding is ``clip((HIGH - LOW) sigmoid(v) + LOW, 0, 1)``; the paper calls them gamma and zeta."""

# Two products with a factor must be clearly cheaper than one with the Gram matrix: width at least 3 times the rank.
_FACTOR_PAYS = 3

# A pivot below this share of the largest is rounding error: the rest of the matrix is numerically zero.
_ZERO_PIVOT = 1e-10


@dataclass(frozen=True, eq=False)
class BiasGrid:
    """The values that a bias can take; arrays of shape ``[groups, rows]``.

    Attributes:
        scale: Distance between neighbouring values; 0 where the bias is not rounded.
        lowest: Smallest integer minus the zero point.
        highest: Largest integer minus the zero point.
    """

    scale: Float
    lowest: Float
    highest: Float

    def round(self, bias: Single) -> Single:
        """Return the nearest values on the grid."""
        scale = np.where(self.scale > 0, self.scale, 1.0)
        levels = round_and_clip(bias / scale, self.lowest, self.highest)
        return np.where(self.scale > 0, (levels.astype(np.float32) * self.scale.astype(np.float32)), bias)


@dataclass(frozen=True, eq=False)
class RowProblem:
    """What training starts from. Weights have the shape ``[groups, rows, width]``, biases ``[groups, rows]``.

    The loss of a row is ``w G w' - 2 w c + (w m + b - t)^2``; without the constant term.

    Attributes:
        gram: G, ``[groups, width, width]``.
        cross: c.
        mean: m, ``[groups, width]``.
        target: t.
        scale: Scale of each weight, or what broadcasts to it.
        lowest: Smallest integer minus the zero point, likewise.
        highest: Largest integer minus the zero point, likewise.
        value: What is trained: AdaQuant's weights, or one number per weight that says how far AdaRound rounds it up.
        floor: AdaRound's weights rounded down, as integers; None for AdaQuant.
        bias: The bias.
        bias_grid: The values the bias can take.
        bias_moves: Whether the bias is trained too.
        factor: F with ``G = F F'``, ``[groups, width, rank]``, if that has clearly fewer numbers than G.
    """

    gram: Single
    cross: Single
    mean: Single
    target: Single
    scale: Single
    lowest: Single
    highest: Single
    value: Single
    floor: Single | None
    bias: Single
    bias_grid: BiasGrid
    bias_moves: bool
    factor: Single | None = None

    def times_gram(self, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``w G`` for all rows."""
        if self.factor is None:
            return np.asarray(weight @ self.gram)
        return np.asarray((weight @ self.factor) @ self.factor.transpose(0, 2, 1))


def row_problem(problem: LayerProblem, *, rounds: bool) -> RowProblem:
    """Return the rows of a layer.

    Args:
        problem: The layer.
        rounds: Train as AdaRound does, otherwise as AdaQuant does.
    """
    form, grid = problem.quadratic, problem.grid
    assert grid is not None
    value, floor = start_values(problem, rounds=rounds)
    return RowProblem(
        gram=form.gram.astype(np.float32),
        cross=np.ascontiguousarray(form.cross.transpose(0, 2, 1), np.float32),
        mean=form.column_mean.astype(np.float32),
        target=form.target_mean.astype(np.float32),
        scale=grid.scale,
        lowest=grid.lowest,
        highest=grid.highest,
        value=value,
        floor=floor,
        # AdaRound does not train the bias: the quadratic form contains it, so mean error and its gradient are zero.
        bias=form.target_mean.astype(np.float32) if rounds else problem.bias,
        bias_grid=BiasGrid(*(np.zeros(problem.bias.shape) for _ in range(3))) if rounds else bias_grid(problem),
        bias_moves=problem.bias_moves,
        factor=low_rank(form.gram, form.count + 1),
    )


def start_values(problem: LayerProblem, *, rounds: bool) -> tuple[Single, Single | None]:
    """Return what training starts from: AdaQuant's weights, or AdaRound's variables and weights rounded down.

    AdaRound's variables start where the soft rounding leaves every weight unchanged, so training starts from the float
    model.
    """
    grid = problem.grid
    assert grid is not None
    if not rounds:
        return problem.weight, None
    exact = problem.weight / grid.scale
    floor = np.floor(exact)
    part = ((exact - floor) - LOW) / (HIGH - LOW)
    return np.log(part / (1.0 - part)).astype(np.float32), floor


def bias_grid(problem: LayerProblem) -> BiasGrid:
    """Return the values that the bias of a layer can take."""
    params, shape = problem.bias_params, problem.bias.shape
    if params is None:
        return BiasGrid(*(np.zeros(shape) for _ in range(3)))
    lowest, highest = (np.asarray(end - params.zero_point, np.float64) for end in (params.lowest, params.highest))
    parts = (params.scale.astype(np.float64), lowest, highest)
    return BiasGrid(*(np.broadcast_to(part.reshape(-1), (problem.bias.size,)).reshape(shape).copy() for part in parts))


def low_rank(gram: Float, bound: int) -> Single | None:
    """Return F with ``G = F F'`` from a pivoted Cholesky decomposition; None where that would not save much.

    A layer that sees one position per sample, such as the last layer of a classifier, has a Gram matrix whose rank is
    at most the number of samples.

    Args:
        gram: Positive semidefinite, ``[1, width, width]``; returns None for several groups.
        bound: Upper bound of the rank.

    Returns:
        ``[1, width, rank]``.
    """
    groups, width, _ = gram.shape
    if groups > 1 or bound * _FACTOR_PAYS > width:
        return None
    rest = np.diagonal(gram[0]).copy()
    factor = np.zeros((width, bound))
    smallest = float(rest.max()) * _ZERO_PIVOT
    for column in range(bound):
        pivot = int(rest.argmax())
        if rest[pivot] <= smallest:
            break
        found = gram[0, :, pivot] - factor[:, :column] @ factor[pivot, :column]
        factor[:, column] = found / np.sqrt(rest[pivot])
        rest = np.maximum(rest - factor[:, column] ** 2, 0.0)
        rest[pivot] = 0.0
    return factor[None].astype(np.float32)
