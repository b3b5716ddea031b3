"""What rounding errors of inner tensors cost the results of a model.

An error e of an inner tensor x costs, to second order,

::

    e' H e,   H = J' A J        J: derivative of the results by x,  A: cost of a squared error of each result
            = E[(g . e)^2],     g = J' v,  v drawn with mean 0 and covariance A

so one backward pass from random numbers gives the costs for all tensors of the model at once. Only the diagonal of H is
used, because rounding errors of different values are almost independent. For several scales s at once::

    cost[k, c] = sum over channel c of ((clip(round(x / s), low, high) s - x) g) ** 2,   s = scales[k, c]

On a CPU, ``c/candidate_errors.c`` computes these sums and reads a tensor once for all scales.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantry.errors import DataError, ModelError, RecipeError
from quantry.execute.fake_quantizer import FakeQuantizer
from quantry.numerics import kernels
from quantry.numerics.torch_kernels import can_read, run_in_torch_threads
from quantry.numerics.torch_quantizer import Gradient, round_and_clip
from quantry.torchfront.quantized_module import QuantizedModule, fake_quantizers, require_quantized
from quantry.torchfront.switches import enable_quantizers

Importance = Callable[[Any], Any]
"""From a model's results to the cost of a squared error of each of their numbers, in the same structure and shapes."""

_MANY = 1 << 15
"""With at least this many values times candidates, threads share the work."""

_SMALLEST = 1e-12
"""Keeps the importance of an all-zero result finite."""


# -- costs of candidate scales -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Candidates:
    """Scales to choose from.

    Attributes:
        scales: float32, [candidates, 1] or [candidates, channels].
        low: Smallest level minus zero point, float32, [1] or [channels].
        high: Largest level minus zero point, likewise.
    """

    scales: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, quantizer: FakeQuantizer, factors: npt.NDArray[np.floating[Any]]) -> "Candidates":
        """Return a quantizer's scales multiplied by each of some factors."""
        scale, zero = quantizer.scale.reshape(-1), quantizer.zero_point.reshape(-1)
        low, high = (limit - zero.to(scale.dtype) for limit in quantizer.limits)
        return cls(torch.as_tensor(factors, dtype=scale.dtype, device=scale.device)[:, None] * scale, low, high)


def candidate_errors(values: Tensor, gradient: Tensor, candidates: Candidates, axis: int | None) -> Tensor:
    """Return the cost of the rounding errors with each candidate scale, float64, [candidates, channels] on the CPU.

    Args:
        values: Floats of any shape.
        gradient: The cost of an error of each value, of the same shape.
        candidates: The scales.
        axis: The channel axis; None for one channel.
    """
    values, gradient = values.detach(), gradient.detach()
    library = kernels.loaded()
    if can_read(values) and can_read(gradient) and library is not None:
        return _compiled_errors(library, values, gradient, candidates, axis)
    shape = [1] * values.dim() if axis is None else [-1 if index == axis else 1 for index in range(values.dim())]
    reduced = [index for index in range(values.dim()) if index != axis]
    low, high = candidates.low.reshape(shape), candidates.high.reshape(shape)
    costs = []
    for scales in candidates.scales:
        scale = scales.reshape(shape)
        error = round_and_clip(values / scale, low, high).mul_(scale).sub_(values).mul_(gradient)
        squares = error.square_()
        costs.append((squares.sum(reduced) if reduced else squares).double().cpu().reshape(-1))
    return torch.stack(costs)


def _compiled_errors(
    library: kernels.Kernels, values: Tensor, gradient: Tensor, candidates: Candidates, axis: int | None
) -> Tensor:
    shape = values.shape
    if axis is None:
        # The kernel shares channels among threads. With one channel, treat the first two axes as channels and add their
        # sums afterwards.
        outer, channels = 1, math.prod(shape[:2])
    else:
        outer, channels = math.prod(shape[:axis]), shape[axis]
    values, gradient = values.contiguous(), gradient.contiguous()
    count = len(candidates.scales)
    scales = candidates.scales.expand(count, channels).contiguous()
    low, high = (bound.expand(channels).contiguous() for bound in (candidates.low, candidates.high))
    sums = torch.zeros(count, channels, dtype=torch.float64)
    pointers = (tensor.data_ptr() for tensor in (values, gradient, scales, low, high, sums))
    task = kernels.ErrorTask(*pointers, outer, channels, math.prod(shape) // max(1, outer * channels), count, 0)
    run_in_torch_threads(library.add_errors, task, alone=channels == 1 or values.numel() * count < _MANY)
    return sums.sum(1, keepdim=True) if axis is None else sums


# -- gradients of all tensors ------------------------------------------------------------------------------------------


class CostCollector(Protocol):
    """Adds up what errors of one tensor cost."""

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add the costs of a batch.

        Args:
            values: The tensor.
            gradient: The random gradient g, of the same shape.
        """


def collect_costs(
    module: QuantizedModule,
    collectors: Mapping[str, CostCollector],
    batches: Iterable[Any],
    importance: Importance | None,
    seed: int,
) -> None:
    """Run a module in float and pass each collector its tensor and the random gradient of it.

    Args:
        module: The module; it is not changed.
        collectors: By the names of `fake_quantizers`.
        batches: Tensors, or tuples whose first item is one.
        importance: Cost of errors of the results; None uses the squared error of each result relative to its energy.
        seed: Seed of the random directions.

    Raises:
        DataError: There are no batches.
    """
    quantizers = fake_quantizers(module)
    hooks = [quantizers[name].register_forward_pre_hook(_hook(collector)) for name, collector in collectors.items()]
    was_training = module.training
    module.eval()
    enable_quantizers(module, enabled=False)
    generator = torch.Generator().manual_seed(seed)
    count = 0
    try:
        for batch in batches:
            images = batch[0] if isinstance(batch, list | tuple) else batch
            _run_batch(module, images, importance or _relative, generator)
            count += 1
    finally:
        for hook in hooks:
            hook.remove()
        enable_quantizers(module, enabled=True)
        module.train(was_training)
    if not count:
        raise DataError("at least one batch is needed, got none; in choose_scales or balance_channels")


def check_scales_are_fixed(module: QuantizedModule, caller: str) -> None:
    """Raise unless a module is quantized and its scales are neither final nor learned.

    Raises:
        ModelError: The module is not quantized, or is frozen.
        RecipeError: Scales are learned.
    """
    require_quantized(module, caller)
    if module.is_frozen:
        raise ModelError(
            "scales must be chosen before the module is frozen, got a frozen one; use the result of quantize_model; in "
            f"{caller}"
        )
    quantizers = fake_quantizers(module).items()
    learned = [name for name, quantizer in quantizers if quantizer.gradient is not Gradient.STRAIGHT_THROUGH]
    if learned:
        raise RecipeError(
            f"scales must be chosen before they are learned, got {len(learned)} learned ones such as that of "
            f"{learned[0]!r}; call {caller} before learn_scales and qat"
        )


class _Record(torch.autograd.Function):  # type: ignore[misc]
    """Returns its input, and passes input and gradient to a collector in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, collector: CostCollector) -> Tensor:
        ctx.save_for_backward(values)
        ctx.collector = collector
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.collector.add(ctx.saved_tensors[0], gradients[0])
        return gradients[0], None


def _hook(collector: CostCollector) -> Callable[..., Any]:
    def hook(_: Any, arguments: tuple[Tensor, ...]) -> Any:
        return (_Record.apply(arguments[0], collector),) if arguments[0].requires_grad else None

    return hook


def _run_batch(module: QuantizedModule, batch: Tensor, importance: Importance, generator: torch.Generator) -> None:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    device = trained[0].device if trained else batch.device
    # Without a gradient of the input, autograd would skip the quantizers before the first layer.
    images = batch.detach().to(device).requires_grad_(batch.is_floating_point())
    with torch.enable_grad():
        results = module(images)
        leaves = torch.utils._pytree.tree_leaves(results)
        with torch.no_grad():
            costs = torch.utils._pytree.tree_leaves(importance(results))
        total = torch.zeros((), device=device)
        for leaf, cost in zip(leaves, costs, strict=True):
            drawn = torch.randn(leaf.shape, generator=generator).to(device)
            total = total + (leaf * (drawn * cost.sqrt())).sum()
        sources = [*trained, images] if images.requires_grad else trained
        torch.autograd.grad(total, sources, allow_unused=True)


def _relative(results: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: torch.full_like(leaf, 1.0 / (float(leaf.square().mean()) * leaf.numel() + _SMALLEST)), results
    )
