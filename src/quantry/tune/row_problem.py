"""The rows of a layer as independent problems: a quadratic form each, with what is trained."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.numerics.rounding import round_and_clip
from quantry.tune.layer_problem import LayerProblem

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_WORTH_IT = 3
_NOTHING = 1e-10

LOW, HIGH = -0.1, 1.1
"""AdaRound's rounding is ``clip((HIGH - LOW) sigmoid(v) + LOW, 0, 1)``."""


@dataclass(frozen=True, eq=False)
class BiasGrid:
    """The values a bias can take; ``[groups, rows]`` each.

    Attributes:
        scale: Distance of neighbouring values; 0 where it is not rounded.
        lowest: Smallest integer less the zero point.
        highest: Largest integer less the zero point.
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

    The loss of a row is ``w G w' - 2 w c + (w m + b - t)^2``, with what depends on no weight left out.

    Attributes:
        gram: G, ``[groups, width, width]``.
        cross: c.
        mean: m, ``[groups, width]``.
        target: t.
        scale: Of the weights' grid, or what broadcasts to their shape.
        lowest: Smallest integer less the zero point, likewise.
        highest: Largest integer less the zero point, likewise.
        value: What is trained: the weights of AdaQuant, a number for the rounding of each weight of AdaRound.
        floor: AdaRound's weights rounded down, as integers; None trains as AdaQuant does.
        bias: The bias.
        bias_grid: What values it can take.
        bias_moves: Whether it is trained too.
        factor: F with ``G = F F'``, ``[groups, width, rank]``, where that has fewer numbers; None elsewhere.
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


def rounding_rows(problem: LayerProblem) -> RowProblem:
    """Return the rows of a layer for AdaRound: what is trained is a number for the rounding of each weight."""
    return _rows(problem, *rounding_values(problem))


def weight_rows(problem: LayerProblem) -> RowProblem:
    """Return the rows of a layer for AdaQuant: what is trained is the weights."""
    return _rows(problem, problem.weight, None)


def rounding_values(problem: LayerProblem) -> tuple[Single, Single]:
    """Return for each weight the number with which AdaRound's rounding leaves it as it is, and its integer below."""
    grid = problem.grid
    assert grid is not None
    exact = problem.weight / grid.scale
    floor = np.floor(exact)
    part = ((exact - floor) - LOW) / (HIGH - LOW)
    return np.log(part / (1.0 - part)).astype(np.float32), floor


def _rows(problem: LayerProblem, value: Single, floor: Single | None) -> RowProblem:
    form, grid = problem.quadratic, problem.grid
    assert grid is not None
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
        # The bias that AdaRound leaves alone is in the quadratic form already.
        bias=problem.bias if floor is None else form.target_mean.astype(np.float32),
        bias_grid=bias_grid(problem) if floor is None else BiasGrid(*(np.zeros(problem.bias.shape) for _ in range(3))),
        bias_moves=problem.bias_moves,
        factor=low_rank(form.gram, form.count + 1),
    )


def bias_grid(problem: LayerProblem) -> BiasGrid:
    """Return what values the bias of a layer can take."""
    params, shape = problem.bias_params, problem.bias.shape
    if params is None:
        return BiasGrid(*(np.zeros(shape) for _ in range(3)))
    lowest, highest = (np.asarray(end - params.zero_point, np.float64) for end in (params.lowest, params.highest))
    parts = (params.scale.astype(np.float64), lowest, highest)
    return BiasGrid(*(np.broadcast_to(part.reshape(-1), (problem.bias.size,)).reshape(shape).copy() for part in parts))


def low_rank(gram: Float, bound: int) -> Single | None:
    """Return F with ``G = F F'`` by a Cholesky decomposition with pivots; None where it would not save much.

    A layer that sees one position of each sample, such as the last one of a classifier, has a Gram matrix of as low a
    rank as there are samples.

    Args:
        gram: Positive semidefinite, ``[1, width, width]``; None is returned for several groups.
        bound: The rank is not higher than that.

    Returns:
        ``[1, width, rank]``.
    """
    groups, width, _ = gram.shape
    if groups > 1 or bound * _WORTH_IT > width:
        return None
    rest = np.diagonal(gram[0]).copy()
    factor = np.zeros((width, bound))
    smallest = float(rest.max()) * _NOTHING
    for column in range(bound):
        pivot = int(rest.argmax())
        if rest[pivot] <= smallest:
            break
        found = gram[0, :, pivot] - factor[:, :column] @ factor[pivot, :column]
        factor[:, column] = found / np.sqrt(rest[pivot])
        rest = np.maximum(rest - factor[:, column] ** 2, 0.0)
        rest[pivot] = 0.0
    return factor[None].astype(np.float32)
