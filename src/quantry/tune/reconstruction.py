"""How far a layer's output is from its target for given constants, and which way they should move.

This module imports torch, so it is imported inside functions only.
"""

from typing import Any, Protocol

import numpy as np
import torch

from quantry.execute.interpreter.attributes import Attributes
from quantry.execute.interpreter.operators import OPERATORS
from quantry.graph.operators import MATRIX_PRODUCTS
from quantry.numerics.torch_quantizer import fake_quantize
from quantry.recipe import LayerTraining
from quantry.tune.layer_problem import LayerProblem

_JUDGED_SAMPLES = 32


class Reconstruction(Protocol):
    """The loss of one layer: squared error summed over channels, averaged over positions.

    Weights come as ``[groups, rows, width]`` and biases as ``[groups, rows]``, both on the device of the training.
    """

    def slope(self, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
        """Return the loss and its derivatives by weight and bias, of all samples or of a mini-batch drawn anew."""
        ...

    def judge(self, weight: Any, bias: Any) -> float:
        """Return the loss of constants as they will be written, always on the same samples."""
        ...


class WholeData:
    """The exact loss over all samples, from their Gram matrix.

    Args:
        problem: The layer.
        device: Where to compute.
    """

    def __init__(self, problem: LayerProblem, device: str) -> None:
        form = problem.quadratic
        moved = (torch.from_numpy(part.astype(np.float32)).to(device) for part in (form.gram, form.column_mean))
        self._gram, self._mean = moved
        self._cross = torch.from_numpy(form.cross.transpose(0, 2, 1).astype(np.float32)).to(device)
        self._target_mean = torch.from_numpy(form.target_mean.astype(np.float32)).to(device)
        self._power = float(form.power.sum())
        self._form = form

    def slope(self, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
        """Return the loss over all samples and its derivatives."""
        product = torch.bmm(weight, self._gram)
        shift = torch.einsum("grk,gk->gr", weight, self._mean).add_(bias).sub_(self._target_mean)
        loss = (weight * (product - 2.0 * self._cross)).sum() + shift.square().sum() + self._power
        by_weight = product.sub_(self._cross).mul_(2.0)
        by_weight += 2.0 * shift[:, :, None] * self._mean[:, None, :]
        return loss, by_weight, 2.0 * shift

    def judge(self, weight: Any, bias: Any) -> float:
        """Return the loss over all samples, in double precision."""
        return float(self._form.error(weight.cpu().numpy(), bias.cpu().numpy()).sum())


class MiniBatches:
    """The loss of samples drawn at random, behind the activation function and, on request, the output's pair.

    Args:
        problem: The layer.
        step: Batch size, seed and what belongs to the output.
        device: Where to compute.
    """

    def __init__(self, problem: LayerProblem, step: LayerTraining, device: str) -> None:
        self._problem, self._step, self._device = problem, step, device
        self._layer = problem.visit.layer
        task = problem.visit.walker.task
        opset = task.model.opset
        self._attributes = Attributes(self._layer.node, opset)
        activation = self._layer.activation
        self._activation = activation if activation is not None and activation.op_type in OPERATORS else None
        self._extra: list[Any] = []
        if self._activation is not None:
            self._activation_attributes = Attributes(self._activation, opset)
            self._extra = [_constant(value, device) for value in self._activation.inputs[1:]]
        last = self._layer.output if self._activation is None else self._activation.outputs[0].name or ""
        planned = last in task.plan.activations and step.output_pair
        self._output_params = task.params.tensors.get(last) if planned else None
        self._random = np.random.default_rng(problem.visit.seed)

    def slope(self, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
        """Return the loss of mini-batches and its derivatives."""
        weight, bias = weight.detach().requires_grad_(), bias.detach().requires_grad_()
        total: Any = 0.0
        for _ in range(self._step.batches):
            count = self._problem.visit.samples
            drawn = self._random.choice(count, min(self._step.batch_size, count), replace=False)
            total = total + self._loss(weight, bias, [int(number) for number in drawn]) / self._step.batches
        by_weight, by_bias = torch.autograd.grad(total, (weight, bias), allow_unused=True)
        return total.detach(), by_weight, torch.zeros_like(bias) if by_bias is None else by_bias

    def judge(self, weight: Any, bias: Any) -> float:
        """Return the loss of the first samples."""
        numbers = range(min(_JUDGED_SAMPLES, self._problem.visit.samples))
        with torch.no_grad():
            return float(np.mean([float(self._loss(weight, bias, [number])) for number in numbers]))

    def _loss(self, weight: Any, bias: Any, numbers: list[int]) -> Any:
        losses = []
        for number in numbers:
            fed, target = (torch.from_numpy(np.array(a)).to(self._device) for a in self._problem.visit.pair(number))
            constants = [fed, self._original(weight)]
            if self._layer.bias is not None:
                constants.append(bias.reshape(self._problem.visit.layer.initializer(self._layer.bias).shape))
            error = self._behind(OPERATORS[self._layer.node.op_type](constants, self._attributes), pair=True)
            error = error - self._behind(target, pair=False)
            channels = error.shape[1] if error.dim() > 2 or self._layer.node.op_type == "Conv" else error.shape[-1]
            losses.append(error.square().sum() * channels / error.numel())
        return torch.stack(losses).mean()

    def _behind(self, values: Any, *, pair: bool) -> Any:
        if self._activation is not None:
            values = OPERATORS[self._activation.op_type]([values, *self._extra], self._activation_attributes)
        params = self._output_params
        if params is None or not pair:
            return values
        scale, zero = (torch.tensor(part, device=self._device) for part in (params.scale, params.zero_point))
        return fake_quantize(values, scale, zero, (params.lowest, params.highest), params.axis)

    def _original(self, weight: Any) -> Any:
        """Return a weight in the operator's own shape."""
        matrix = self._problem.matrix
        if matrix.operator == "ConvTranspose":
            inputs, rows = matrix.shape[0] // matrix.groups, matrix.shape[1]
            split = weight.reshape(matrix.groups, rows, inputs, -1).transpose(1, 2).reshape(matrix.shape)
            return split.flip(tuple(range(2, len(matrix.shape))))
        plain = weight[0].T if matrix.operator in MATRIX_PRODUCTS and not matrix.rows_first else weight
        return plain.reshape(matrix.shape)


def _constant(value: Any, device: str) -> Any:
    if value is None or value.const_value is None:
        return None
    return torch.from_numpy(np.array(value.const_value.numpy())).to(device)
