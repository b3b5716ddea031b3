"""What errors inside a model cost its results.

An error e of a tensor x inside costs, to second order,

::

    e' H e,   H = J' A J        J: derivative of the results by x,  A: what a squared error of each number of them costs
            = E[(g . e)^2],     g = J' v,  v drawn with mean 0 and covariance A

so that one backward pass from random numbers prices errors of every tensor of the model at once. Of H the diagonal is
taken: errors of rounding hardly depend on each other.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from quantry.errors import DataError, ModelError, RecipeError
from quantry.numerics.torch_quantizer import Gradient
from quantry.torchfront.fake_quantizer import FakeQuantizer
from quantry.torchfront.quantized_module import QuantizedModule, require_quantized
from quantry.torchfront.switches import enable_quantizers

Importance = Callable[[Any], Any]
"""From a model's results to what a squared error of each of their numbers costs, in the same structure and shapes."""

_SMALLEST = 1e-12


class Ledger(Protocol):
    """Takes down what errors of one tensor cost."""

    def add(self, values: Tensor, gradient: Tensor) -> None:
        """Add what is seen of a batch.

        Args:
            values: The tensor.
            gradient: The random gradient g, of the same shape.
        """


def fake_quantizers(module: QuantizedModule) -> dict[str, FakeQuantizer]:
    """Return the quantizers to integers, by the tensor whose scale they hold."""
    parts = {name: module.get_submodule(path) for name, path in module.layout.quantizers.items()}
    return {name: part for name, part in parts.items() if isinstance(part, FakeQuantizer)}


def price_errors(
    module: QuantizedModule,
    ledgers: Mapping[str, Ledger],
    batches: Iterable[Any],
    importance: Importance | None,
    seed: int,
) -> None:
    """Show ledgers what their tensors are, in float, and what errors of them cost.

    Args:
        module: The module; it is left as it was.
        ledgers: By the names of `fake_quantizers`.
        batches: Tensors, or tuples whose first item is one.
        importance: What errors of the results cost; None takes the squared error of each result, relative to its size.
        seed: Of the random directions.

    Raises:
        DataError: There are no batches.
    """
    parts = fake_quantizers(module)
    hooks = [parts[name].register_forward_pre_hook(_tapped(ledger)) for name, ledger in ledgers.items()]
    was_training = module.training
    module.eval()
    enable_quantizers(module, enabled=False)
    generator = torch.Generator().manual_seed(seed)
    count = 0
    try:
        for batch in batches:
            images = batch[0] if isinstance(batch, list | tuple) else batch
            _price_batch(module, images, importance or _relative, generator)
            count += 1
    finally:
        for hook in hooks:
            hook.remove()
        enable_quantizers(module, enabled=True)
        module.train(was_training)
    if not count:
        raise DataError("errors are priced on at least one batch, got none; in choose_scales and balance_channels")


def check_scales_are_free(module: QuantizedModule, where: str) -> None:
    """Raise unless a module is quantized and its scales may still be chosen.

    Raises:
        ModelError: The module is no quantized one, or is frozen.
        RecipeError: Scales are learned.
    """
    require_quantized(module, where)
    if module.is_frozen:
        raise ModelError(
            "scales are chosen in what quantize_model returned, got a frozen module, whose scales are final; in "
            f"{where}"
        )
    parts = fake_quantizers(module).items()
    learned = [name for name, part in parts if part.gradient is not Gradient.STRAIGHT_THROUGH]
    if learned:
        raise RecipeError(
            f"scales are chosen before they are learned, got {len(learned)} learned ones such as that of "
            f"{learned[0]!r}; call {where} before learn_scales and qat"
        )


class _Tap(torch.autograd.Function):  # type: ignore[misc]
    """Passes values on, and prices their errors when the gradient comes back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ledger: Ledger) -> Tensor:
        ctx.save_for_backward(values)
        ctx.ledger = ledger
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.ledger.add(ctx.saved_tensors[0], gradients[0])
        return gradients[0], None


def _tapped(ledger: Ledger) -> Callable[..., Any]:
    def hook(_: Any, arguments: tuple[Tensor, ...]) -> Any:
        return (_Tap.apply(arguments[0], ledger),) if arguments[0].requires_grad else None

    return hook


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


def _relative(results: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: torch.full_like(leaf, 1.0 / (float(leaf.square().mean()) * leaf.numel() + _SMALLEST)), results
    )
