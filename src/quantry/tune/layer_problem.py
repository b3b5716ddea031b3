"""One layer to tune: its constants in matrix form, the values they can take, and their output error."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.numerics.rounding import fake_quantize, round_and_clip
from quantry.numerics.tensor_params import TensorParams
from quantry.runtime.threads import one_blas_thread
from quantry.tune.arrays import Load
from quantry.tune.layer_matrix import LayerMatrix, layer_matrix
from quantry.tune.layers import LayerConstants
from quantry.tune.layerwise import LayerVisit
from quantry.tune.quadratic_form import (
    QuadraticForm,
    Solve,
    compensation_share,
    gather,
    joined,
    with_compensation,
)

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class WeightGrid:
    """The values that weights can take.

    Attributes:
        scale: Scale of each weight, ``[groups, rows, width]`` or what broadcasts to it.
        lowest: Smallest integer minus the zero point, likewise.
        highest: Largest integer minus the zero point, likewise.
    """

    scale: Single
    lowest: Single
    highest: Single

    def round(self, weight: Single, columns: slice = slice(None)) -> Single:
        """Return the nearest values on the grid.

        Args:
            weight: Weights, or some columns of them.
            columns: Which columns.
        """
        grid = self.columns(columns)
        return np.asarray(round_and_clip(weight / grid.scale, grid.lowest, grid.highest) * grid.scale, np.float32)

    def clip(self, weight: Single) -> Single:
        """Return weights with those outside the range of the grid moved to its ends."""
        return np.asarray(np.clip(weight, self.lowest * self.scale, self.highest * self.scale), np.float32)

    def columns(self, selection: slice | npt.NDArray[np.int64]) -> "WeightGrid":
        """Return the grid of some columns, which may be reordered."""
        arrays = (self.scale, self.lowest, self.highest)
        return WeightGrid(*(array if array.shape[2] == 1 else array[:, :, selection] for array in arrays))


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """A layer in matrix form, ``[groups, rows, width]``, with its error as a quadratic form.

    Attributes:
        visit: Inputs and targets.
        trains_bias: Whether the bias may change.
        compensates: Also compensate errors of the inputs, as far as that helps on samples it was not learned from;
            False aims at the output of the float layer for the quantized inputs.
        trained: Whether the constants are trained, for which fewer positions are enough.
    """

    visit: LayerVisit
    trains_bias: bool
    compensates: bool = True
    trained: bool = False

    @cached_property
    def matrix(self) -> LayerMatrix:
        """The layer as a product of matrices."""
        return layer_matrix(self.visit.layer)

    @cached_property
    def weight(self) -> Single:
        """The weight to start from."""
        layer = self.visit.layer
        return np.asarray(self.matrix.to_matrix(layer.initializer(layer.weight)), np.float32)

    @cached_property
    def bias(self) -> Single:
        """The bias to start from, ``[groups, rows]``; zero if the layer has none."""
        groups, rows, _ = self.weight.shape
        name = self.visit.layer.bias
        if name is None:
            return np.zeros((groups, rows), np.float32)
        values = self.visit.layer.initializer(name)
        return np.broadcast_to(values.reshape(-1), (groups * rows,)).reshape(groups, rows)

    @cached_property
    def bias_moves(self) -> bool:
        """Whether there is a bias that may change."""
        name = self.visit.layer.bias
        return self.trains_bias and name is not None and self.visit.layer.initializer(name).size == self.bias.size

    @cached_property
    def grid(self) -> WeightGrid | None:
        """The values the weight can take; None if it stays float."""
        layer = self.visit.layer
        if not layer.weight_planned:
            return None
        params = self.visit.walker.task.params.tensors[layer.weight]
        return weight_grid(self.matrix, params)

    @cached_property
    def quadratic(self) -> QuadraticForm:
        """The error as a quadratic form; the first access goes through all samples."""
        return self.form_of(gather(self.visit, self.matrix, trained=self.trained))

    def form_of(
        self, halves: Sequence[QuadraticForm], load: Load = np.asarray, solve: Solve = np.linalg.solve
    ) -> QuadraticForm:
        """Return the error as a quadratic form.

        Args:
            halves: The moments of each half of the samples.
            load: From a NumPy array to an array of the halves' kind.
            solve: Solves systems of such arrays.
        """
        weight, bias = (load(constant.astype(np.float64)) for constant in (self.weight, self.bias))
        with one_blas_thread():
            share = compensation_share(halves, weight, solve) if self.compensates else 0.0
        form = with_compensation(joined(halves), weight, bias, share)
        rounded_bias = load(self.rounded_bias(self.bias).astype(np.float64))
        return form if self.bias_moves else form.without_bias(rounded_bias)

    @cached_property
    def positions(self) -> int:
        """About how many positions all samples have together: the number of equations for one row of weights."""
        return self.visit.walker.target_size(self.visit.layer) // self.bias.size * self.visit.samples

    @cached_property
    def bias_params(self) -> TensorParams | None:
        """How the bias is rounded; None if it is not."""
        name, task = self.visit.layer.bias, self.visit.walker.task
        if name is None or name not in task.plan.biases or self.visit.layer.initializer(name).size != self.bias.size:
            return None
        return task.params.tensors.get(name)

    def rounded_bias(self, bias: npt.NDArray[np.floating]) -> Single:
        """Return a bias ``[groups, rows]`` as the emit stage will round it."""
        params, name = self.bias_params, self.visit.layer.bias
        if params is None or name is None:
            return np.asarray(bias, np.float32)
        shape = self.visit.layer.initializer(name).shape
        return fake_quantize(np.asarray(bias, np.float32).reshape(shape), params).reshape(bias.shape)

    def plain(self) -> Single:
        """Return the weight after plain rounding."""
        return self.weight if self.grid is None else self.grid.round(self.weight)

    def choose(self, weight: Single, bias: npt.NDArray[np.floating] | None = None) -> LayerConstants:
        """Return the constants of the layer: for each row, the better of plain rounding and a candidate.

        Args:
            weight: The candidate, on the grid, ``[groups, rows, width]``.
            bias: Its bias; None takes the one without mean error, or the old one if it may not change.
        """
        if bias is None:
            bias = self.quadratic.best_bias(weight) if self.bias_moves else self.bias
        before = self.quadratic.error(self.plain(), self.rounded_bias(self.bias))
        return self.settled(weight, bias, before, self.quadratic.error(weight, self.rounded_bias(bias)))

    def settled(self, weight: Single, bias: npt.NDArray[np.floating], before: Float, after: Float) -> LayerConstants:
        """Return the constants of the layer: for each row, the better of plain rounding and a candidate.

        Args:
            weight: The candidate, on the grid, ``[groups, rows, width]``.
            bias: Its bias, ``[groups, rows]``.
            before: Error of plain rounding, ``[groups, rows]``.
            after: Error of the candidate, likewise.
        """
        plain, better = self.plain(), after < before
        best_weight = np.where(better[:, :, None], weight, plain)
        best_bias = np.where(better, bias, self.bias)
        values = {self.visit.layer.weight: np.ascontiguousarray(self.matrix.from_matrix(best_weight), np.float32)}
        name = self.visit.layer.bias
        if self.bias_moves and name is not None:
            values[name] = best_bias.astype(np.float32).reshape(self.visit.layer.initializer(name).shape)
        best_error = np.where(better, after, before)
        return LayerConstants(values, float(before.mean()), float(best_error.mean()))

    def take(self, weight: Single, bias: npt.NDArray[np.floating], before: float, after: float) -> LayerConstants:
        """Return constants that were evaluated as a whole, or none if they are not better than plain rounding.

        Args:
            weight: The candidate, on the grid, ``[groups, rows, width]``.
            bias: Its bias, ``[groups, rows]``.
            before: Loss of plain rounding.
            after: Loss of the candidate.
        """
        if not after < before:
            return LayerConstants({}, before, before)
        layer = self.visit.layer
        values = {layer.weight: np.ascontiguousarray(self.matrix.from_matrix(weight), np.float32)}
        if self.bias_moves and layer.bias is not None:
            values[layer.bias] = bias.astype(np.float32).reshape(layer.initializer(layer.bias).shape)
        return LayerConstants(values, before, after)


def weight_grid(matrix: LayerMatrix, params: TensorParams) -> WeightGrid:
    """Return the grid of a weight in matrix form."""
    ones_of_shape = np.ones(matrix.shape, np.float32)
    if params.axis is None:
        scale, zero_point = params.scale, params.zero_point
    elif params.group is None:
        ones = [1] * len(matrix.shape)
        ones[params.axis] = -1
        scale, zero_point = params.scale.reshape(ones), params.zero_point.reshape(ones)
    else:
        index = np.arange(matrix.shape[params.axis]) // params.group
        scale = np.take(params.scale, index, axis=params.axis)
        zero_point = np.take(params.zero_point, index, axis=params.axis)
    full = (
        scale * ones_of_shape,
        (params.lowest - zero_point) * ones_of_shape,
        (params.highest - zero_point) * ones_of_shape,
    )
    arrays = (np.asarray(matrix.to_matrix(array), np.float32) for array in full)
    # One column is enough where all columns are equal.
    columns = (array[:, :, :1] if (array == array[:, :, :1]).all() else array for array in arrays)
    return WeightGrid(*map(np.ascontiguousarray, columns))
