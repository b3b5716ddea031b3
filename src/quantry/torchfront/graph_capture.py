"""Why a module could not be captured, in a sentence: the example's fault, or something torch.export cannot follow.

From the user's module to a graph.

``torch.export.export_for_training``, which torch 2.13 no longer has and existing scripts call.
"""

import inspect
import io
import linecache
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from quantry.errors import DataError, ModelError, RecipeError, UserError, known_keywords, nearest_spelling
from quantry.torchfront.quantized_module import refuse_quantized

_TORCH = Path(torch.__file__).parent
_SIZES = ("`dynamic_shapes`", "Constraints violated")
_DATA_DEPENDENT = ("data-dependent", "is not supported for tensor subclasses")


def refusal(error: Exception, model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> UserError:
    """Return what to raise after a capture that failed.

    Args:
        error: What torch raised.
        model: The module, in evaluation mode.
        arguments: The example's positional arguments.
        named: Those by name.

    Returns:
        DataError where the module cannot be called with the example either, else ModelError.
    """
    wrong = wrong_call(model, arguments, named, "capture") or _failed_call(model, arguments, named)
    if wrong is not None:
        return wrong
    name, place = type(model).__name__, _place(error)
    reason = _first_line(error)
    if any(text in str(error) for text in _SIZES):
        return DataError(
            f"dynamic_shapes must be of the example's form and leave free what {name} allows to vary, got others: "
            f"{reason}; in capture"
        )
    if any(text in str(error) for text in _DATA_DEPENDENT):
        return ModelError(
            f"a module to capture must run the same operators whatever values its inputs have, got {name}, whose code "
            f"reads values of a tensor{place}; write a choice between values with torch.where, or capture the "
            "submodules that do not choose; in capture"
        )
    return ModelError(
        f"a module must be one that torch.export can capture, got {name}, at which it fails{place}: {reason}; capture "
        "submodules without that part; in capture"
    )


def wrong_call(model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], where: str) -> DataError | None:
    """Return an error where number or names of arguments are not those of a module's ``forward``."""
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        unknown = [name for name in named if name not in signature.parameters]
        hint = nearest_spelling(unknown[0], signature.parameters) if unknown else ""
        return DataError(
            f"an example must be the arguments of {type(model).__name__}.forward({', '.join(signature.parameters)}), "
            f"got {_described((arguments, dict(named)))}: {error}{hint}; in {where}"
        )
    return None


def takes(model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a module can be called with arguments."""
    return wrong_call(model, arguments, named, "") is None and _failed_call(model, arguments, named) is None


def _failed_call(model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> DataError | None:
    try:
        with torch.no_grad():
            model(*arguments, **named)
    except Exception as error:
        return DataError(
            f"an example must be what the module can be called with, got {_described((arguments, dict(named)))}: "
            f"{type(model).__name__} fails on it{_place(error)}: {_first_line(error)}; in capture"
        )
    return None


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep back the graph that torch.export writes to stderr when it fails, and its warnings of that moment."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level, written, dumped = log.level, io.StringIO(), False
    log.setLevel(logging.ERROR)
    try:
        with redirect_stderr(written):
            yield
    except Exception as error:
        dumped = hasattr(error, "partial_fx_graph")
        raise
    finally:
        log.setLevel(level)
        if not dumped:
            sys.stderr.write(written.getvalue())


def _described(arguments: Any) -> str:
    positional, named = arguments
    parts = [_kind(value) for value in positional]
    return ", ".join([*parts, *(f"{name}={_kind(value)}" for name, value in named.items())]) or "none"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__).rstrip(".")


def _place(error: Exception) -> str:
    """Return file, line and code of the user's that an error passed through last."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if file.suffix == ".py" and _TORCH not in file.parents and file.parent != Path(__file__).parent:
            code = linecache.getline(str(file), line).strip()
            return f" at {file}:{line} ({code})" if code else f" at {file}:{line}"
    return ""


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


@dataclass(frozen=True)
class CapturedProgram:
    """What the function returns: only `module` is used by scripts.

    Attributes:
        graph_module: The captured graph.
    """

    graph_module: fx.GraphModule

    def module(self) -> fx.GraphModule:
        """Return the captured graph."""
        return self.graph_module


@known_keywords("export_for_training")
def export_for_training(
    mod: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = "batch",
    strict: bool = False,
) -> CapturedProgram:
    """Capture a module as `quantry.torch.capture` does, under the name and with the arguments torch had.

    Args:
        mod: The module.
        args: Positional arguments of an example call.
        kwargs: Arguments by name.
        dynamic_shapes: As for `capture`; torch's default fixed all sizes, here the batch is free.
        strict: Only False: torch itself has dropped the other way.
    """
    if strict:
        raise RecipeError("export_for_training takes strict=False only: modules are captured by running them")
    return CapturedProgram(capture(mod, tuple(args), kwargs, dynamic_shapes=dynamic_shapes))


def install_export_for_training() -> None:
    """Give torch the name where it has none; where it has one, that stays."""
    if not hasattr(torch.export, "export_for_training"):
        torch.export.export_for_training = export_for_training
