"""Captures a user's module as a graph, and explains why a capture failed."""

import dataclasses
import functools
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
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from quantry.errors import DataError, ModelError, RecipeError, UserError, known_keywords, nearest_spelling
from quantry.torchfront.lowering.exported_program import shapes_of, store_program
from quantry.torchfront.quantized_module import refuse_quantized

_OTHER_NAMES = {"args": "example", "example_inputs": "example", "inputs": "example", "module": "model", "mod": "model"}

_TORCH = Path(torch.__file__).parent
# Parts of torch's messages; its exceptions have no codes to tell the causes by.


@known_keywords("capture", _OTHER_NAMES)
def capture(
    model: nn.Module,
    example: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = "batch",
) -> fx.GraphModule:
    """Return the graph of a module, ready to be quantized.

    The module is captured in evaluation mode. Batch normalizations keep their parameters and can be trained later.

    Args:
        model: The module, or a submodule: assign the result in its place. It is not changed.
        example: Arguments to call it with: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        kwargs: Further keyword arguments.
        dynamic_shapes: "batch" makes the first axis of every tensor dynamic, None fixes all sizes; anything else is
            passed to ``torch.export.export``. If the module accepts no other batch size than the example's, that size
            is fixed.

    Raises:
        ModelError: torch cannot capture the module, or it is already quantized.
        DataError: The module cannot be called with the example.

    Example:
        >>> detector.base_model = capture(detector.base_model, torch.rand(1, 3, 416, 416))  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ModelError(f"the model must be a torch module in Python, got {type(model).__name__}; in capture")
    refuse_quantized(model, "capture")
    arguments, keywords = example_call(model, example, kwargs, caller="capture")
    wide, shapes = (arguments, keywords), dynamic_shapes
    if isinstance(shapes, str):
        if shapes != "batch":
            raise DataError(f"dynamic_shapes must be 'batch', None or torch's own form, got {shapes!r}; in capture")
        wide = _widened(wide)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(wide) if isinstance(leaf, torch.Tensor)]
        shapes = shapes_of([(leaf, [0] if leaf.dim() > 1 else []) for leaf in leaves])
    modes = {submodule: submodule.training for submodule in model.modules()}
    try:
        if not isinstance(model, fx.GraphModule):
            model.eval()
        try:
            program = _exported_with_results(model, wide, shapes)
        except Exception:
            # Retry with the example's own batch size if the model fails only because of the batch of two.
            if not (_can_be_called(model, arguments, keywords) and not _can_be_called(model, *wide)):
                raise
            program = _exported_with_results(model, (arguments, keywords), None)
    except Exception as error:
        raise _capture_error(error, model, arguments, keywords) from error
    finally:
        for submodule, training in modes.items():
            submodule.training = training
    # The module that torch.export returns rejects train() and eval(); a plain module with the same graph accepts them.
    captured = program.module()
    graph = fx.GraphModule(captured, captured.graph)
    store_program(graph, program)
    return graph


@dataclass(frozen=True)
class CapturedProgram:
    """The result of `export_for_training`; scripts use only `module`.

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
    """Call `capture` under the name and with the arguments of ``torch.export.export_for_training``.

    torch 2.13 no longer has that function, but existing scripts call it.

    Args:
        mod: The module.
        args: Positional arguments of an example call.
        kwargs: Keyword arguments.
        dynamic_shapes: As for `capture`. torch's default fixed all sizes; here the batch size is dynamic.
        strict: Must be False; torch has removed the strict mode as well.
    """
    if strict:
        raise RecipeError(
            "strict must be False, got True: modules are captured by running them; in export_for_training"
        )
    return CapturedProgram(capture(mod, tuple(args), kwargs, dynamic_shapes=dynamic_shapes))


def install_export_for_training() -> None:
    """Add ``torch.export.export_for_training`` if this version of torch does not have it."""
    if not hasattr(torch.export, "export_for_training"):
        torch.export.export_for_training = export_for_training


def is_captured(model: object) -> bool:
    """Return whether a model is already a graph."""
    return isinstance(model, fx.GraphModule)


def is_module(model: object) -> bool:
    """Return whether a model is a torch module."""
    return isinstance(model, nn.Module)


def call_error(
    model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], caller: str
) -> DataError | None:
    """Return an error if the number or names of arguments do not match a module's ``forward``.

    Args:
        model: The module.
        arguments: Positional arguments.
        keywords: Keyword arguments.
        caller: The function that the user called, for the message.
    """
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        unknown = [name for name in keywords if name not in signature.parameters]
        hint = nearest_spelling(unknown[0], signature.parameters) if unknown else ""
        return DataError(
            f"an example must be the arguments of {type(model).__name__}.forward({', '.join(signature.parameters)}), "
            f"got {_described((arguments, dict(keywords)))}: {error}{hint}; in {caller}"
        )
    return None


def example_call(
    model: nn.Module, example: Any, kwargs: Mapping[str, Any] | None = None, *, caller: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of an example, the latter in the order of the module's signature.

    Args:
        model: The module to call.
        example: A tensor, a tuple of positional arguments, or a dict of keyword arguments. A dict without any of the
            names of ``forward`` is a positional argument.
        kwargs: Further keyword arguments.
        caller: The function that the user called, for the message.

    Raises:
        DataError: The example contains no tensor.
    """
    order = list(inspect.signature(model.forward).parameters)
    by_name = isinstance(example, Mapping) and not set(order).isdisjoint(example)
    keywords = {**(example if by_name else {}), **(kwargs or {})}
    arguments = () if by_name else tuple(example) if isinstance(example, tuple | list) else (example,)
    _register_dataclasses((arguments, keywords))
    if not any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves((arguments, keywords))):
        raise DataError(f"an example must contain at least one torch tensor, got {type(example).__name__}; in {caller}")
    ordered = {name: keywords[name] for name in order if name in keywords}
    return arguments, ordered | keywords


# -- the example -------------------------------------------------------------------------------------------------------


def _exported_with_results(model: nn.Module, arguments: Any, shapes: Any) -> torch.export.ExportedProgram:
    """Export a module; if that fails, try again after looking for dataclasses in its results."""
    try:
        return _exported(model, arguments, shapes)
    except Exception:
        try:
            with torch.no_grad():
                results = model(*arguments[0], **arguments[1])
        except Exception:
            results = None
        if not _register_dataclasses(results):
            raise
    return _exported(model, arguments, shapes)


def _register_dataclasses(values: Any) -> bool:
    """Tell torch how to flatten the dataclasses among values; return whether it did not know one."""
    kinds = {type(leaf) for leaf in torch.utils._pytree.tree_leaves(values) if dataclasses.is_dataclass(leaf)}
    for kind in kinds:
        torch.export.register_dataclass(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
    # A dataclass may hold others.
    return bool(kinds) and (_register_dataclasses(values) or True)


def _exported(model: nn.Module, arguments: Any, shapes: Any) -> torch.export.ExportedProgram:
    with warnings.catch_warnings(), _quiet_torch(), _named_parameters(model, arguments[1]):
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")  # raised inside torch at torch.cond
        # torch's own recurrent layers keep a list of their weights, which is not lost.
        warnings.filterwarnings("ignore", r"The tensor attributes? self\..*_flat_weights")
        return torch.export.export(model, *arguments, dynamic_shapes=shapes)


@contextmanager
def _named_parameters(model: nn.Module, keywords: Mapping[str, Any]) -> Iterator[None]:
    """Let a module's signature name the keyword arguments of a call that its ``forward`` takes as ``**kwargs``.

    torch.export cannot match dynamic shapes with arguments that have no parameter of their own.
    """
    forward = model.forward
    accepted = inspect.signature(forward).parameters
    variadic = next((name for name, kind in accepted.items() if kind.kind is inspect.Parameter.VAR_KEYWORD), None)
    extra = [name for name in keywords if name not in accepted]
    if variadic is None or not extra or isinstance(model, fx.GraphModule):
        yield
        return

    @functools.wraps(forward)
    def call(*arguments: Any, **values: Any) -> Any:
        return forward(*arguments, **values)

    extra_parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in extra]
    parameters = [*(kind for name, kind in accepted.items() if name != variadic), *extra_parameters]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    replaced = model.__dict__.get("forward")
    model.forward = call
    try:
        yield
    finally:
        del model.forward
        if replaced is not None:
            model.forward = replaced


def _widened(arguments: Any) -> Any:
    """Repeat a batch of one, because torch.export treats a size of 1 as a constant."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 1 and leaf.shape[0] == 1:
            return torch.cat([leaf, leaf])
        return leaf

    return torch.utils._pytree.tree_map(widen, arguments)


# -- failed captures ---------------------------------------------------------------------------------------------------


class _Cause(Enum):
    """Why torch.export failed, with words of its texts."""

    SIZES = ("`dynamic_shapes`", "Constraints violated")
    DATA_DEPENDENT = ("data-dependent", "is not supported for tensor subclasses")


def _cause(error: Exception) -> _Cause | None:
    """Return why torch.export failed; None if that is none of the usual causes.

    torch raises one class for several causes, and other classes in other versions: only words of its texts tell.
    """
    return next((cause for cause in _Cause if any(words in str(error) for words in cause.value)), None)


def _capture_error(
    error: Exception, model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> UserError:
    """Return what to raise after a failed capture.

    Args:
        error: What torch raised.
        model: The module, in evaluation mode.
        arguments: The example's positional arguments.
        keywords: Its keyword arguments.

    Returns:
        DataError if the module cannot be called with the example either, otherwise ModelError.
    """
    wrong = call_error(model, arguments, keywords, "capture") or _failed_call(model, arguments, keywords)
    if wrong is not None:
        return wrong
    name, location = type(model).__name__, _place(error)
    reason = _first_line(error)
    cause = _cause(error)
    if cause is _Cause.SIZES:
        return DataError(
            f"dynamic_shapes must have the example's structure and free only sizes that {name} lets vary, got: "
            f"{reason}; in capture"
        )
    if cause is _Cause.DATA_DEPENDENT:
        return ModelError(
            f"a module to capture must run the same operators for all input values, got {name}, whose code reads "
            f"values of a tensor{location}; select values with torch.where, or capture the submodules that do not "
            "branch; in capture"
        )
    return ModelError(
        f"torch.export must be able to capture the module, got {name}, for which it fails{location}: {reason}; capture "
        "submodules without that part; in capture"
    )


def _can_be_called(model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    return call_error(model, arguments, keywords, "") is None and _failed_call(model, arguments, keywords) is None


def _failed_call(model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> DataError | None:
    try:
        with torch.no_grad():
            model(*arguments, **keywords)
    except Exception as error:
        return DataError(
            f"an example must be accepted by the module, got {_described((arguments, dict(keywords)))}: "
            f"{type(model).__name__} fails{_place(error)}: {_first_line(error)}; in capture"
        )
    return None


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Suppress the graph that torch.export writes to stderr when it fails, and its warnings about sizes."""
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
    positional, keywords = arguments
    kinds = [_kind(value) for value in positional]
    return ", ".join([*kinds, *(f"{name}={_kind(value)}" for name, value in keywords.items())]) or "none"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__).rstrip(".")


def _place(error: Exception) -> str:
    """Return file, line and code of the innermost frame that belongs to the user."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if file.suffix == ".py" and _TORCH not in file.parents and file.parent != Path(__file__).parent:
            code = linecache.getline(str(file), line).strip()
            return f" at {file}:{line} ({code})" if code else f" at {file}:{line}"
    return ""
