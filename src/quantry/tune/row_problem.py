"""The rows of a layer as independent problems: one quadratic form per row, and the values that are trained.

The output of a linear layer is one row of weights per channel, and the error of a channel depends on its own row only.
AdaRound and AdaQuant therefore train all rows at once without any of them affecting another.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.tune.arrays import Load, round_and_clip, single, where
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.quadratic_form import QuadraticForm

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

    scale: Any
    lowest: Any
    highest: Any

    def round(self, bias: Any) -> Any:
        """Return the nearest values on the grid."""
        levels = round_and_clip(bias / where(self.scale > 0, self.scale, 1.0), self.lowest, self.highest)
        return where(self.scale > 0, single(levels) * single(self.scale), bias)


@dataclass(frozen=True, eq=False)
class RowProblem:
    """What training starts from: arrays, or tensors on a device.

    Weights have the shape ``[groups, rows, width]``, biases ``[groups, rows]``.
    The loss of a row is ``w G w' - 2 w c + (w m + b - t)^2``; without the constant term.

    Attributes:
        scale: Scale of each weight, or what broadcasts to it.
        lowest: Smallest integer minus the zero point, likewise.
        highest: Largest integer minus the zero point, likewise.
        value: What is trained: AdaQuant's weights, or one number per weight that says how far AdaRound rounds it up.
        floor: AdaRound's weights rounded down, as integers; None for AdaQuant.
        bias: The bias.
        bias_grid: The values the bias can take.
        bias_moves: Whether the bias is trained too.
        gram: G, ``[groups, width, width]``; None, like the next three, for a loss that is no quadratic form.
        cross: c.
        mean: m, ``[groups, width]``.
        target: t.
        factor: F with ``G = F F'``, ``[groups, width, rank]``, if that has clearly fewer numbers than G.
    """

    scale: Any
    lowest: Any
    highest: Any
    value: Any
    floor: Any
    bias: Any
    bias_grid: BiasGrid
    bias_moves: bool
    gram: Any = None
    cross: Any = None
    mean: Any = None
    target: Any = None
    factor: Any = None

    def times_gram(self, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``w G`` for all rows."""
        if self.factor is None:
            return np.asarray(weight @ self.gram)
        return np.asarray((weight @ self.factor) @ self.factor.transpose(0, 2, 1))

    def written(self, value: Any) -> Any:
        """Return the weights that trained values are rounded to in the end."""
        levels = value / self.scale if self.floor is None else self.floor + (value >= 0)
        return round_and_clip(levels, self.lowest, self.highest) * self.scale


def row_problem(
    problem: LayerProblem, form: QuadraticForm | None, *, rounds: bool, load: Load = np.asarray
) -> RowProblem:
    """Return the rows of a layer.

    Args:
        problem: The layer.
        form: Its error as a quadratic form of such arrays as `load` returns; None for a loss that is none.
        rounds: Train as AdaRound does, otherwise as AdaQuant does.
        load: From a NumPy array to what the rows are trained with.
    """
    grid = problem.grid
    assert grid is not None
    value, floor = start_values(problem, rounds=rounds)
    # AdaRound does not train the bias: the quadratic form contains it, so mean error and its gradient are zero.
    bias = problem.rounded_bias(problem.bias) if rounds else problem.bias
    bias_grid = (np.zeros(problem.bias.shape),) * 3 if rounds else bias_limits(problem)
    moments = {}
    if form is not None:
        half = form.converted(single)
        moments = {"gram": half.gram, "mean": half.column_mean, "target": half.target_mean}
        moments["cross"] = half.cross.swapaxes(1, 2)
    return RowProblem(
        scale=load(grid.scale),
        lowest=load(grid.lowest),
        highest=load(grid.highest),
        value=load(value),
        floor=None if floor is None else load(floor),
        bias=load(bias),
        bias_grid=BiasGrid(*map(load, bias_grid)),
        bias_moves=problem.bias_moves,
        **moments,
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
    fraction = ((exact - floor) - LOW) / (HIGH - LOW)
    return np.log(fraction / (1.0 - fraction)).astype(np.float32), floor


def bias_limits(problem: LayerProblem) -> tuple[Float, Float, Float]:
    """Return scale, smallest and largest integer of the biases of a layer, as `BiasGrid` has them."""
    params, shape = problem.bias_params, problem.bias.shape
    if params is None:
        return np.zeros(shape), np.zeros(shape), np.zeros(shape)
    limits = (params.scale, params.lowest - params.zero_point, params.highest - params.zero_point)
    scale, lowest, highest = (
        np.broadcast_to(np.asarray(limit, np.float64).reshape(-1), (problem.bias.size,)).reshape(shape).copy()
        for limit in limits
    )
    return scale, lowest, highest


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
    residual = np.diagonal(gram[0]).copy()
    factor = np.zeros((width, bound))
    smallest = float(residual.max()) * _ZERO_PIVOT
    for column in range(bound):
        pivot = int(residual.argmax())
        if residual[pivot] <= smallest:
            break
        column_values = gram[0, :, pivot] - factor[:, :column] @ factor[pivot, :column]
        factor[:, column] = column_values / np.sqrt(residual[pivot])
        residual = np.maximum(residual - factor[:, column] ** 2, 0.0)
        residual[pivot] = 0.0
    return factor[None].astype(np.float32)
