"""From the user's module to a graph."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from quantry.errors import DataError, ModelError


def capture(
    model: nn.Module,
    example: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = "batch",
) -> fx.GraphModule:
    """Return the graph of a module, ready to be quantized.

    The module is captured as it is used at inference; its batch normalizations keep their parameters and train later.

    Args:
        model: The module, or a submodule: assign the result in its place. It is left as it was.
        example: Arguments to call it with: a tensor, or a tuple of positional arguments.
        kwargs: Arguments by name.
        dynamic_shapes: "batch" lets the first axis of every tensor vary, None fixes all sizes, and anything else goes
            to ``torch.export.export``.

    Raises:
        ModelError: torch cannot capture the module.
        DataError: The example is not what the module takes.

    Example:
        >>> detector.base_model = capture(detector.base_model, torch.rand(1, 3, 416, 416))  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"what is captured must be a torch module, got {type(model).__name__}; in capture")
    arguments = tuple(example) if isinstance(example, tuple | list) else (example,)
    named = dict(kwargs or {})
    if not any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves((arguments, named))):
        raise DataError(f"an example must hold at least one tensor, got {type(example).__name__}; in capture")
    shapes = dynamic_shapes
    if isinstance(shapes, str):
        if shapes != "batch":
            raise DataError(f"dynamic_shapes must be 'batch', None or torch's own form, got {shapes!r}; in capture")
        shapes = _batch_axes(arguments, named)
        arguments, named = _widened((arguments, named))
    modes = {part: part.training for part in model.modules()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            if not isinstance(model, fx.GraphModule):
                model.eval()
            captured = torch.export.export(model, arguments, named, dynamic_shapes=shapes).module()
    except Exception as error:
        raise ModelError(
            f"a module must be one that torch.export can capture, got {type(model).__name__}; capture a submodule "
            f"without the part it stumbles over; torch: {error}"
        ) from error
    finally:
        for part, training in modes.items():
            part.training = training
    # What torch.export returns refuses train() and eval(); the same graph in a plain module does not.
    return fx.GraphModule(captured, captured.graph)


def _batch_axes(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    # AUTO lets torch fix the axis after all where the model needs it so.
    def free(leaf: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if isinstance(leaf, torch.Tensor) and leaf.dim() > 1 else None

    shapes = torch.utils._pytree.tree_map(free, (arguments, named))
    return (*shapes[0], *shapes[1].values()) if shapes[1] else shapes[0]


def _widened(arguments: Any) -> Any:
    """Repeat a batch of one: torch.export takes a size of 1 for a constant."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 1 and leaf.shape[0] == 1:
            return torch.cat([leaf, leaf])
        return leaf

    return torch.utils._pytree.tree_map(widen, arguments)


def is_captured(model: object) -> bool:
    """Whether a model is a graph already."""
    return isinstance(model, fx.GraphModule)


def is_module(model: object) -> bool:
    """Whether a model is a torch module."""
    return isinstance(model, nn.Module)
