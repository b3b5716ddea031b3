"""AdaRound and AdaQuant with mini-batches, for losses that are no quadratic form of the weights.

Needed by three options: ``whole_data=False`` trains on random samples, ``output_pair`` compares outputs after the
activation function and the output's own quantizer, and layers whose Gram matrix is too large to multiply with in every
step are trained this way too.

This module imports torch, so it is imported inside functions only.
"""

from typing import Any

import numpy as np
import torch

from quantry.execute.interpreter import interpretable, torch_call
from quantry.execute.trainable_graph import torch_device
from quantry.numerics.torch_quantizer import fake_quantize_as
from quantry.recipe import LayerTraining
from quantry.tune.gpu_rows import TorchRows, loader, tensor_backend
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.row_backends import RowBackend
from quantry.tune.row_problem import row_problem

_EVALUATED_SAMPLES = 32


def mini_batch_backend(problem: LayerProblem, step: LayerTraining, *, rounds: bool) -> RowBackend:
    """Return the backend that trains with mini-batches, on any device.

    Args:
        problem: The layer.
        step: Batch size, number of batches, seed and device.
        rounds: Train as AdaRound does, otherwise as AdaQuant does.
    """
    device = torch_device(step.device)
    torch.manual_seed(problem.visit.seed)
    batches = MiniBatches(problem, step, device)
    load = loader(device)
    steps = TorchRows(row_problem(problem, None, rounds=rounds, load=load), batches.slope)
    # The loss of an output after its quantizer is not a sum over rows: constants are kept as a whole or not at all.
    return tensor_backend(steps, batches.error, load, per_row=False)


class MiniBatches:
    """The loss of samples drawn at random, after the activation function and, on request, the output's quantizer.

    Args:
        problem: The layer.
        step: Batch size, seed and whether the output's quantizer counts.
        device: Where to compute.
    """

    def __init__(self, problem: LayerProblem, step: LayerTraining, device: str) -> None:
        self._problem, self._step, self._device = problem, step, device
        self._layer = problem.visit.layer
        task = problem.visit.walker.task
        opset = task.model.opset
        self._call = torch_call(self._layer.node, opset)
        activation = self._layer.activation
        self._activation = activation if activation is not None and interpretable(activation) is None else None
        self._extra: list[Any] = []
        if self._activation is not None:
            self._activation_call = torch_call(self._activation, opset)
            constants = (None if value is None else value.const_value for value in self._activation.inputs[1:])
            load = loader(device)
            self._extra = [None if constant is None else load(constant.numpy()) for constant in constants]
        last = self._layer.output if self._activation is None else self._activation.outputs[0].name or ""
        quantizer = problem.visit.walker.simulation.view.get(last) if step.output_pair else None
        self._output_params = None if quantizer is None else quantizer.params
        self._random = np.random.default_rng(problem.visit.seed)

    def slope(self, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
        """Return the loss of new mini-batches and its derivatives with respect to weight and bias."""
        weight, bias = weight.detach().requires_grad_(), bias.detach().requires_grad_()
        total: Any = 0.0
        for _ in range(self._step.batches):
            count = self._problem.visit.samples
            drawn = self._random.choice(count, min(self._step.batch_size, count), replace=False)
            total = total + self._loss(weight, bias, [int(number) for number in drawn]) / self._step.batches
        by_weight, by_bias = torch.autograd.grad(total, (weight, bias), allow_unused=True)
        return total.detach(), by_weight, torch.zeros_like(bias) if by_bias is None else by_bias

    def error(self, weight: Any, bias: Any) -> Any:
        """Return the loss of the first samples, ``[1, 1]``; always the same samples, so that states compare."""
        numbers = range(min(_EVALUATED_SAMPLES, self._problem.visit.samples))
        with torch.no_grad():
            mean = np.mean([float(self._loss(weight, bias, [number])) for number in numbers])
        return torch.full((1, 1), float(mean), dtype=torch.float64, device=self._device)

    def _loss(self, weight: Any, bias: Any, numbers: list[int]) -> Any:
        losses = []
        for number in numbers:
            fed, target = (torch.from_numpy(np.array(a)).to(self._device) for a in self._problem.visit.pair(number))
            constants = [fed, self._problem.matrix.from_matrix(weight)]
            if self._layer.bias is not None:
                constants.append(bias.reshape(self._problem.visit.layer.initializer(self._layer.bias).shape))
            output = self._call(constants)
            error = self._after(output, quantized=True) - self._after(target, quantized=False)
            channels = error.shape[1] if error.dim() > 2 or self._layer.node.op_type == "Conv" else error.shape[-1]
            # Summed over channels and averaged over positions, as the quadratic form is.
            losses.append(error.square().sum() * channels / error.numel())
        return torch.stack(losses).mean()

    def _after(self, values: Any, *, quantized: bool) -> Any:
        """Return an output after the activation function, and after its quantizer if asked for."""
        if self._activation is not None:
            values = self._activation_call([values, *self._extra])
        params = self._output_params
        if params is None or not quantized:
            return values
        return fake_quantize_as(values, params)
