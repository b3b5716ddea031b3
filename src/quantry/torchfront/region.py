"""A quantized module inside a larger float one, as a single operator while the larger one is captured."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from quantry.torchfront.freezing import freeze
from quantry.torchfront.quantized_module import QuantizedModule

OPERATOR = "Region"
DOMAIN = "quantry.region"

_MODULES: dict[str, QuantizedModule] = {}
_SHAPES: dict[str, tuple[int, list[Tensor]]] = {}


@torch.library.custom_op("quantry::region", mutates_args=())  # type: ignore[untyped-decorator]
def region(inputs: list[Tensor], key: str) -> list[Tensor]:
    """Run the module known under a key on its flattened arguments."""
    results = [part.clone() for part in _flat_call(_MODULES[key], inputs)]
    _SHAPES[key] = (inputs[0].shape[0], [torch.empty_like(part, device="meta") for part in results])
    return results


@region.register_fake  # type: ignore[untyped-decorator]
def _(inputs: list[Tensor], key: str) -> list[Tensor]:
    batch, examples = _SHAPES[key]
    shapes = [
        [inputs[0].shape[0] if size == batch and not axis else size for axis, size in enumerate(part.shape)]
        for part in examples
    ]
    return [inputs[0].new_empty(shape, dtype=part.dtype) for shape, part in zip(shapes, examples, strict=True)]


class _StandIn(nn.Module):  # type: ignore[misc]
    """Calls the operator in place of the module."""

    def __init__(self, key: str, out_spec: Any) -> None:
        super().__init__()
        self.key, self.out_spec = key, out_spec

    def forward(self, *arguments: Any, **named: Any) -> Any:
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves((arguments, named)) if torch.is_tensor(leaf)]
        results = torch.ops.quantry.region(leaves, self.key)
        if self.out_spec is None:
            return results[0]
        return torch.utils._pytree.tree_unflatten(results, self.out_spec)


@contextmanager
def stand_ins(model: nn.Module) -> Iterator[dict[str, QuantizedModule]]:
    """Put operators in the place of the quantized submodules for the duration of a block.

    Yields:
        The quantized modules by their path in the model.
    """
    found = _inside(model)
    _MODULES.update(found)
    try:
        for name, part in found.items():
            signature = part.blueprint.signature
            _replace(model, name, _StandIn(name, None if signature is None else signature.out_spec))
        yield found
    finally:
        for name, part in found.items():
            _replace(model, name, part)
            _MODULES.pop(name, None)
            _SHAPES.pop(name, None)


@contextmanager
def frozen_inside(model: nn.Module) -> Iterator[None]:
    """Put the final forms of the quantized submodules in their places for the duration of a block."""
    found = _inside(model)
    try:
        for name, part in found.items():
            _replace(model, name, part if part.is_frozen else freeze(part))
        yield
    finally:
        for name, part in found.items():
            _replace(model, name, part)


def _inside(model: nn.Module) -> dict[str, QuantizedModule]:
    found = {name: part for name, part in model.named_modules() if isinstance(part, QuantizedModule)}
    return {name: part for name, part in found.items() if not any(name.startswith(f"{other}.") for other in found)}


def _flat_call(module: QuantizedModule, inputs: list[Tensor]) -> list[Tensor]:
    signature = module.blueprint.signature
    if signature is None:
        result = module(*inputs)
    else:
        arguments, named = torch.utils._pytree.tree_unflatten(inputs, signature.in_spec)
        result = module(*arguments, **named)
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(leaf)]


def _replace(model: nn.Module, path: str, part: nn.Module) -> None:
    holder, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(holder), leaf, part)
