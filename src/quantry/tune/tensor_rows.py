"""The rows of a layer on a GPU: what `quantry.tune.row_problem` says, as tensors.

This module imports torch, so it is imported inside functions only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quantry.tune.layer_problem import LayerProblem
from quantry.tune.row_problem import HIGH, LOW, RowProblem, bias_grid
from quantry.tune.tensor_quadratic import TensorQuadratic


@dataclass(frozen=True, eq=False)
class TensorRows:
    """What training starts from; attributes mean what those of `RowProblem` do.

    Attributes:
        bias_grid: Distance of neighbouring values, smallest and largest integer, float64 ``[3, groups, rows]``.
    """

    gram: Any
    cross: Any
    mean: Any
    target: Any
    scale: Any
    lowest: Any
    highest: Any
    value: Any
    floor: Any
    bias: Any
    bias_grid: Any
    bias_moves: bool

    def rounded_bias(self, bias: Any) -> Any:
        """Return the nearest biases that can be written."""
        scale, lowest, highest = self.bias_grid
        levels = torch.clamp(torch.round(bias / torch.where(scale > 0, scale, 1.0)), lowest, highest)
        return torch.where(scale > 0, levels.float() * scale.float(), bias)

    def written(self, value: Any) -> Any:
        """Return the weights that trained values are rounded to in the end."""
        levels = torch.round(value / self.scale) if self.floor is None else self.floor + (value >= 0)
        return torch.clamp(levels, self.lowest, self.highest) * self.scale


def tensor_rows(problem: LayerProblem, form: TensorQuadratic, device: str, *, rounds: bool) -> TensorRows:
    """Return the rows of a layer.

    Args:
        problem: The layer.
        form: Its error.
        device: Where to train it.
        rounds: Train as AdaRound does, else as AdaQuant does.
    """
    grid, biases = problem.grid, bias_grid(problem)
    assert grid is not None
    weight, scale = _moved(problem.weight, device), _moved(grid.scale, device)
    value, floor = weight, None
    if rounds:
        exact = weight / scale
        floor = torch.floor(exact)
        part = ((exact - floor) - LOW) / (HIGH - LOW)
        value = torch.log(part / (1.0 - part))
    parts = np.stack([biases.scale, biases.lowest, biases.highest])
    return TensorRows(
        gram=form.gram.float(),
        cross=form.cross.transpose(1, 2).float(),
        mean=form.column_mean.float(),
        target=form.target_mean.float(),
        scale=scale,
        lowest=_moved(grid.lowest, device),
        highest=_moved(grid.highest, device),
        value=value,
        floor=floor,
        bias=_moved(problem.bias, device),
        bias_grid=_moved(parts, device),
        bias_moves=problem.bias_moves,
    )


def tensors_of(rows: RowProblem, device: str) -> TensorRows:
    """Return rows that are given as arrays.

    Args:
        rows: The arrays.
        device: Where they go.
    """
    grid = rows.bias_grid
    names = ("gram", "cross", "mean", "target", "scale", "lowest", "highest", "value", "bias")
    return TensorRows(
        **{name: _moved(getattr(rows, name), device) for name in names},
        floor=None if rows.floor is None else _moved(rows.floor, device),
        bias_grid=_moved(np.stack([grid.scale, grid.lowest, grid.highest]), device),
        bias_moves=rows.bias_moves,
    )


def _moved(array: Any, device: str) -> Any:
    return torch.from_numpy(np.array(array)).to(device)
