"""The reconstruction error of a layer as a quadratic form, on a GPU; see `quantry.tune.quadratic`.

This module imports torch, so it is imported inside functions only.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from quantry.tune.compensation import aimed, joined, part_that_holds
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.quadratic import Quadratic


@dataclass(frozen=True, eq=False)
class TensorQuadratic:
    """Second moments of a layer's columns and targets, in float64; attributes mean what those of `Quadratic` do."""

    gram: Any
    cross: Any
    power: Any
    column_mean: Any
    target_mean: Any
    count: int
    part: float = 1.0

    def error(self, weight: Any, bias: Any) -> Any:
        """Return the mean squared error of each row, ``[groups, rows]``.

        Args:
            weight: ``[groups, rows, width]``.
            bias: ``[groups, rows]``.
        """
        exact = weight.double()
        centered = ((exact @ self.gram - 2.0 * self.cross.transpose(1, 2)) * exact).sum(2) + self.power
        shift = (exact @ self.column_mean[:, :, None])[:, :, 0] + bias - self.target_mean
        return centered.clamp_(min=0.0) + shift.square_()

    def without_bias(self, bias: Any) -> "TensorQuadratic":
        """Return the form for a bias that cannot change: moments about zero, of targets less the bias."""
        goal, mean = self.target_mean - bias, self.column_mean
        return replace(
            self,
            gram=self.gram + mean[:, :, None] * mean[:, None, :],
            cross=self.cross + mean[:, :, None] * goal[:, None, :],
            power=self.power + goal**2,
            column_mean=torch.zeros_like(mean),
            target_mean=bias.double(),
        )

    def arrays(self) -> Quadratic:
        """Return the form as arrays."""
        parts = (self.gram, self.cross, self.power, self.column_mean, self.target_mean)
        gram, cross, power, columns, targets = (part.cpu().numpy() for part in parts)
        return Quadratic(gram, cross, power, columns, targets, self.count, self.part)


def device_form(problem: LayerProblem, device: str) -> TensorQuadratic:
    """Return the quadratic form of a layer on a device, gathered there where its activations are there.

    Args:
        problem: The layer, which makes up for errors of its inputs.
        device: Where the form goes.
    """
    visit = problem.visit
    if visit.walker.device is None:
        form = problem.quadratic
        parts = (form.gram, form.cross, form.power, form.column_mean, form.target_mean)
        gram, cross, power, columns, targets = (torch.from_numpy(np.ascontiguousarray(p)).to(device) for p in parts)
        return TensorQuadratic(gram, cross, power, columns, targets, form.count, form.part)
    from quantry.tune.tensor_columns import gather_tensors

    halves = gather_tensors(visit, problem.matrix, trained=problem.trained)
    weight, bias = (torch.from_numpy(part.astype(np.float64)).to(device) for part in (problem.weight, problem.bias))
    whole = aimed(joined(halves), weight, bias, part_that_holds(halves, weight, torch.linalg.solve))
    if problem.bias_moves:
        return whole
    return whole.without_bias(torch.from_numpy(problem.rounded_bias(problem.bias).copy()).to(device))
