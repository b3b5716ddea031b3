"""The rows of a layer as independent problems: a quadratic form each, with what is trained."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantry.tune.layer_problem import LayerProblem

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

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
        levels = np.clip(np.rint(bias / scale), self.lowest, self.highest)
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
    )


def bias_grid(problem: LayerProblem) -> BiasGrid:
    """Return what values the bias of a layer can take."""
    params, shape = problem.bias_params, problem.bias.shape
    if params is None:
        return BiasGrid(*(np.zeros(shape) for _ in range(3)))
    lowest, highest = (np.asarray(end - params.zero_point, np.float64) for end in (params.lowest, params.highest))
    parts = (params.scale.astype(np.float64), lowest, highest)
    return BiasGrid(*(np.broadcast_to(part.reshape(-1), (problem.bias.size,)).reshape(shape).copy() for part in parts))
