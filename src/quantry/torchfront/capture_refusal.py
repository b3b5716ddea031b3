"""Why a module could not be captured, in a sentence: the example's fault, or something torch.export cannot follow."""

import inspect
import io
import linecache
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantry.errors import DataError, ModelError, UserError, nearest_spelling

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
