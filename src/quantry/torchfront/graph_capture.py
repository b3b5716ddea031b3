"""From the user's module to a graph."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from quantry.errors import DataError, ModelError, known_keywords
from quantry.torchfront.capture_refusal import quiet_torch, refusal, takes
from quantry.torchfront.quantized_module import refuse_quantized

_OTHER_NAMES = {"args": "example", "example_inputs": "example", "inputs": "example", "module": "model", "mod": "model"}


@known_keywords("capture", _OTHER_NAMES)
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
        example: Arguments to call it with: a tensor, a tuple of positional arguments, or a dict of arguments by name.
        kwargs: Further arguments by name.
        dynamic_shapes: "batch" lets the first axis of every tensor vary, None fixes all sizes, and anything else goes
            to ``torch.export.export``. A module that takes a batch of the example's size alone keeps that size.

    Raises:
        ModelError: torch cannot capture the module, or it is quantized already.
        DataError: The example is not what the module takes.

    Example:
        >>> detector.base_model = capture(detector.base_model, torch.rand(1, 3, 416, 416))  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ModelError(f"what is captured must be a torch module in Python, got {type(model).__name__}; in capture")
    refuse_quantized(model, "capture")
    arguments, named = _arguments(model, example, kwargs)
    wide, shapes = (arguments, named), dynamic_shapes
    if isinstance(shapes, str):
        if shapes != "batch":
            raise DataError(f"dynamic_shapes must be 'batch', None or torch's own form, got {shapes!r}; in capture")
        wide, shapes = _widened(wide), _batch_axes(arguments, named)
    modes = {part: part.training for part in model.modules()}
    try:
        if not isinstance(model, fx.GraphModule):
            model.eval()
        try:
            captured = _exported(model, wide, shapes)
        except Exception:
            if not (takes(model, arguments, named) and not takes(model, *wide)):
                raise
            captured = _exported(model, (arguments, named), None)
    except Exception as error:
        raise refusal(error, model, arguments, named) from error
    finally:
        for part, training in modes.items():
            part.training = training
    # What torch.export returns refuses train() and eval(); the same graph in a plain module does not.
    return fx.GraphModule(captured, captured.graph)


def _exported(model: nn.Module, arguments: Any, shapes: Any) -> fx.GraphModule:
    with warnings.catch_warnings(), quiet_torch():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")  # torch's own doing, at torch.cond
        return torch.export.export(model, *arguments, dynamic_shapes=shapes).module()


def _arguments(model: nn.Module, example: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], Any]:
    """Return an example as positional arguments and those by name, the latter in the order of the module's own."""
    order = list(inspect.signature(model.forward).parameters)
    by_name = isinstance(example, Mapping) and not set(order).isdisjoint(example)
    named = {**(example if by_name else {}), **(kwargs or {})}
    arguments = () if by_name else tuple(example) if isinstance(example, tuple | list) else (example,)
    if not any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves((arguments, named))):
        raise DataError(f"an example must hold at least one tensor of torch, got {type(example).__name__}; in capture")
    known = {name: named[name] for name in order if name in named}
    return arguments, known | named


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
