"""Scales chosen by what their errors do to the results.

Rounding a tensor x with the scale s leaves an error e(s) = Q(x, s) - x. To second order the results pay for it with

::

    e' H e,   H = J' A J        J: derivative of the results by x,  A: what a squared error of each number of them costs
            = E[(g . e)^2],     g = J' v,  v drawn with mean 0 and covariance A

so that one backward pass from random numbers prices every candidate for every tensor of the model at once. Of H the
diagonal is taken: errors of rounding hardly depend on each other. A range that suits the values a tensor usually has
need not suit those that matter: in a detector few cells see an object, and the least squared error is the background's.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantry.errors import DataError, ModelError, RecipeError
from quantry.recipe import PowerOfTwoScale
from quantry.scale.npu import LIMITS, refine_for_npu
from quantry.torchfront.fake_quantizer import FakeQuantizer
from quantry.torchfront.freezing import current_params
from quantry.torchfront.quantized_module import QuantizedModule, require_quantized
from quantry.torchfront.switches import enable_quantizers
from quantry.tune.fake_quant import Gradient

Importance = Callable[[Any], Any]
"""From a model's results to what a squared error of each of their numbers costs, in the same structure and shapes."""

_OCTAVES = 3
_FINER = 4
_SMALLEST = 1e-12


def choose_scales(
    module: QuantizedModule, batches: Iterable[Any], importance: Importance | None = None, *, seed: int = 0
) -> int:
    """Give every quantizer the scale whose error costs the results least; needs no labels.

    Power-of-two scales move by whole powers of two, others by quarters of them, up to three powers each way. Tensors
    that an NPU's limits tie to one position are priced together, and its other limits hold afterwards.

    Args:
        module: What quantization after training returned, with scales that are not learned; it is changed in place.
        batches: Some batches of calibration data: tensors, or tuples whose first item is one. A few dozen pictures do.
        importance: What errors of the results cost; None takes the squared error of each result, relative to its size.
        seed: Of the random directions.

    Returns:
        How many scales moved.

    Raises:
        DataError: There are no batches.
        ModelError: The module is no quantized one, or is frozen.
        RecipeError: Scales are learned, and so are no longer to be chosen.

    Example:
        >>> quantized = quantizer.quantize_model(graph, pictures)  # doctest: +SKIP
        >>> choose_scales(quantized, pictures, lambda rows: rows[..., 4:5].detach().expand_as(rows))  # doctest: +SKIP
    """
    _check(module)
    prices = _priced(module, batches, importance or _relative, seed)
    moved = 0
    for names in _tied(module):
        known = [prices[name] for name in names if name in prices]
        if len(known) == len(names):
            moved += _moved(known)
    _keep_limits(module)
    return moved


@dataclass(eq=False)
class _Price:
    """What each candidate for the scale of one quantizer costs.

    Attributes:
        quantizer: The quantizer.
        factors: Candidates as factors of the scale it has, [candidates].
        costs: [candidates, scales].
    """

    quantizer: FakeQuantizer
    factors: npt.NDArray[np.float64]
    costs: Tensor = field(init=False)
    seen: bool = False

    def __post_init__(self) -> None:
        self.costs = torch.zeros(len(self.factors), self.quantizer.scale.numel(), dtype=torch.float64)

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add what errors of some values cost."""
        self.seen = True
        part, axis = self.quantizer, self.quantizer.axis
        shape = [1] * values.dim() if axis is None else [-1 if place == axis else 1 for place in range(values.dim())]
        zero = part.zero_point.reshape(shape)
        low, high = part.limits[0] - zero, part.limits[1] - zero
        others = [place for place in range(values.dim()) if place != axis]
        for index, factor in enumerate(self.factors):
            scale = (part.scale * float(factor)).reshape(shape)
            error = torch.clamp(torch.round(values / scale), low, high).mul_(scale).sub_(values).mul_(gradient)
            self.costs[index] += error.square_().sum(others).double().cpu().reshape(-1)


class _Tap(torch.autograd.Function):  # type: ignore[misc]
    """Passes values on, and prices their errors when the gradient comes back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, price: _Price) -> Tensor:
        ctx.save_for_backward(values)
        ctx.price = price
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.price.add(ctx.saved_tensors[0], gradients[0])
        return gradients[0], None


def _priced(module: QuantizedModule, batches: Iterable[Any], importance: Importance, seed: int) -> dict[str, _Price]:
    """Return the prices of all quantizers that the results depend on, by the tensor whose scale they hold."""
    parts = {name: module.get_submodule(path) for name, path in module.layout.quantizers.items()}
    prices = {
        name: _Price(part, 2.0 ** np.arange(-_OCTAVES, _OCTAVES + _step(part) / 2, _step(part)))
        for name, part in parts.items()
        if isinstance(part, FakeQuantizer)
    }
    hooks = [price.quantizer.register_forward_pre_hook(_tapped(price)) for price in prices.values()]
    was_training = module.training
    module.eval()
    enable_quantizers(module, enabled=False)
    generator = torch.Generator().manual_seed(seed)
    count = 0
    try:
        for batch in batches:
            _price_batch(module, batch[0] if isinstance(batch, list | tuple) else batch, importance, generator)
            count += 1
    finally:
        for hook in hooks:
            hook.remove()
        enable_quantizers(module, enabled=True)
        module.train(was_training)
    if not count:
        raise DataError("scales are chosen on at least one batch, got none; in choose_scales")
    return {name: price for name, price in prices.items() if price.seen}


def _price_batch(module: QuantizedModule, batch: Tensor, importance: Importance, generator: torch.Generator) -> None:
    trained = [part for part in module.parameters() if part.requires_grad]
    device = trained[0].device if trained else batch.device
    # The gradient of the input is what makes the taps in front of the first layer run.
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


def _tapped(price: _Price) -> Callable[..., Any]:
    def hook(_: Any, arguments: tuple[Tensor, ...]) -> Any:
        return (_Tap.apply(arguments[0], price),) if arguments[0].requires_grad else None

    return hook


def _step(part: FakeQuantizer) -> float:
    return 1.0 if isinstance(part.spec.scale, PowerOfTwoScale) else 1.0 / _FINER


def _moved(known: list[_Price]) -> int:
    """Give quantizers that go together the cheapest scale; return how many changed."""
    if len(known) == 1:
        costs, factors = known[0].costs, known[0].factors
        best = factors[costs.argmin(0).numpy()]
    else:
        best = _joint(known)
    count = 0
    for price, factor in zip(known, best if len(known) > 1 else [best], strict=True):
        scale = price.quantizer.scale
        count += int(np.any(factor != 1.0))
        scale.mul_(torch.as_tensor(factor, dtype=scale.dtype, device=scale.device).reshape(scale.shape))
    return count


def _joint(known: list[_Price]) -> list[npt.NDArray[np.float64]]:
    """Return the factors that bring all quantizers to the one scale that costs least in all."""
    scales = np.array([float(price.quantizer.scale) for price in known])
    exponents = np.round(np.log2(scales / scales[0])).astype(int)
    middle = len(known[0].factors) // 2
    best, cheapest = 0, np.inf
    for exponent in range(int(exponents.max()) - middle, int(exponents.min()) + middle + 1):
        cost = sum(float(price.costs[exponent - own + middle]) for price, own in zip(known, exponents, strict=True))
        if cost < cheapest:
            best, cheapest = exponent, cost
    return [np.array([2.0 ** (best - own)]) for own in exponents]


def _tied(module: QuantizedModule) -> list[list[str]]:
    """Return the names of quantizers in groups that must have one position."""
    plan, limits = module.blueprint.plan, module.blueprint.recipe.scale.npu
    leader = {name: name for name in module.layout.quantizers}

    def led(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    aligned = [limit for limit in LIMITS if hasattr(limit, "operators") and getattr(limits, limit.name, False)]
    operators = {operator for limit in aligned for operator in limit.operators}
    for node in module.blueprint.model.model.graph:
        if node.op_type in operators and node.name in plan.quantized_nodes:
            values = [value.name or "" for value in (*node.inputs, *node.outputs) if value is not None]
            roots = [plan.root(name) for name in values if name in plan.activations]
            for one, other in itertools.pairwise(roots):
                leader[led(one)] = led(other)
    groups: dict[str, list[str]] = {}
    for name in leader:
        groups.setdefault(led(name), []).append(name)
    return list(groups.values())


def _keep_limits(module: QuantizedModule) -> None:
    blueprint = module.blueprint
    if blueprint.recipe.scale.npu is None:
        return
    model, params = blueprint.model.model, current_params(module)
    refined = refine_for_npu(model, blueprint.plan, params, blueprint.recipe.scale.npu)
    for name, path in module.layout.quantizers.items():
        part = module.get_submodule(path)
        if isinstance(part, FakeQuantizer):
            part.scale.copy_(torch.tensor(refined.tensors[name].scale))


def _relative(results: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: torch.full_like(leaf, 1.0 / (float(leaf.square().mean()) * leaf.numel() + _SMALLEST)), results
    )


def _check(module: QuantizedModule) -> None:
    require_quantized(module, "choose_scales")
    if module.is_frozen:
        raise ModelError(
            "scales are chosen in what quantize_model returned, got a frozen module, whose scales are final; in "
            "choose_scales"
        )
    learned = [
        name
        for name, path in module.layout.quantizers.items()
        if getattr(module.get_submodule(path), "gradient", Gradient.STRAIGHT_THROUGH) is not Gradient.STRAIGHT_THROUGH
    ]
    if learned:
        raise RecipeError(
            f"scales are chosen before they are learned, got {len(learned)} learned ones such as that of "
            f"{learned[0]!r}; call choose_scales before learn_scales and qat"
        )
