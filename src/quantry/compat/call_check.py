"""Arguments of a call that ours does not take."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx import QConfig, get_default_config
from quantry.onnx.options import NESTED, ROWS, OptionRow

_UNKNOWN = object()
Fault = tuple[str, str]
"""What is missing, and what is known about it."""


def call_faults(node: ast.Call, function: Any, spelling: str) -> Iterator[Fault]:
    """Return what a call asks for that ours does not take, as far as it stands there as a literal.

    Args:
        node: The call.
        function: What is called of ours, or None where that is not known.
        spelling: What is called, as the script has it.
    """
    if function is None or not callable(function):
        return
    if function is get_default_config or function is QConfig.get_default_config:
        yield from _named(node, spelling)
        return
    known = _parameters(function)
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        if keyword.arg == "extra_options" and isinstance(keyword.value, ast.Dict):
            yield from _options(keyword.value, ROWS, "extra_options")
        elif function is QConfig and keyword.arg in ROWS:
            yield from _option(ROWS[keyword.arg], keyword.value, f"{spelling}({keyword.arg}=...)")
        elif known is not None and keyword.arg not in known:
            yield f"{spelling}({keyword.arg}=...)", f"is not there{nearest_spelling(keyword.arg, known)}"


def _named(node: ast.Call, spelling: str) -> Iterator[Fault]:
    names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    for name in names[:1]:
        try:
            get_default_config(str(name))
        except RecipeError as error:
            yield f"{spelling}({name!r})", f"is not there: {error}"


def _parameters(function: Any) -> tuple[str, ...] | None:
    """Return the names of arguments, or None where any is taken."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if function is QConfig:
        own = tuple(entry.name for entry in parameters if entry.kind is not inspect.Parameter.VAR_KEYWORD)
        return (*own, "extra_options", *ROWS)
    if any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in parameters):
        return None
    return tuple(entry.name for entry in parameters)


def _options(node: ast.Dict, known: Mapping[str, OptionRow], where: str) -> Iterator[Fault]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        place = f"{where}[{key.value!r}]"
        row = known.get(key.value)
        if row is None:
            yield place, f"is not there{nearest_spelling(key.value, known)}"
        elif key.value in NESTED and isinstance(value, ast.Dict):
            yield from _options(value, {inner.key: inner for inner in NESTED[key.value]}, place)
        else:
            yield from _option(row, value, place)


def _option(row: OptionRow, node: ast.expr, where: str) -> Iterator[Fault]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return
    if row.refused and value not in row.harmless:
        yield f"{where} = {value!r}", f"cannot be had: {row.refused}"
