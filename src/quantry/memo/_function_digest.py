"""A digest of what a callable does, for functions that have no fingerprint."""

import dis
import functools
import hashlib
import inspect
from collections.abc import Iterator
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

_PLAIN = (str, bytes, int, float, complex, bool, type(None), PurePath)
_METHODS = ("__call__", "per_sample", "scored")


def function_digest(function: Any) -> str:
    """Return a short text that changes when what a callable does changes.

    It covers the instructions and constants of the function, of nested functions and of functions of the same module
    that it calls; its defaults; and plain values (texts, numbers, paths and tuples of them) that it reads from outside.
    For an object it covers the methods of an evaluator. The contents of files, arrays and other objects are not
    covered.

    Args:
        function: A function, method, partial, or callable object.

    Example:
        >>> function_digest(lambda: 1) == function_digest(lambda: 2)
        False
    """
    digest = hashlib.sha256()
    for part in _parts(function, set()):
        digest.update(f"{len(part)} {part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:12]


def _parts(function: Any, visited: set[int]) -> Iterator[str]:
    if isinstance(function, functools.partial):
        yield _plain((function.args, tuple(sorted(function.keywords.items()))))
        yield from _parts(function.func, visited)
        return
    if inspect.ismethod(function):
        function = function.__func__
    if isinstance(function, FunctionType):
        if id(function) not in visited:
            visited.add(id(function))
            yield from _function(function, visited)
        return
    for name in _METHODS:
        method = getattr(type(function), name, None)
        if isinstance(method, FunctionType):
            yield name
            yield from _parts(method, visited)


def _function(function: FunctionType, visited: set[int]) -> Iterator[str]:
    yield from _code(function.__code__)
    yield _plain((function.__defaults__, tuple(sorted((function.__kwdefaults__ or {}).items()))))
    # A variable that the function assigns, such as a counter of calls, does not change what it does.
    written = {
        step.argval for step in _instructions(function.__code__) if step.opname in ("STORE_DEREF", "STORE_GLOBAL")
    }
    for name, value in sorted(_outside(function).items()):
        if name in written:
            continue
        yield name
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            yield from _parts(value, visited)
        else:
            yield _plain(value)


def _code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join((*code.co_names, *code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield _plain(constant)


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _outside(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function reads from its module and from enclosing functions."""
    names = {step.argval for step in _instructions(function.__code__) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    used_globals = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used_globals[name] = cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    return used_globals


def _plain(value: Any) -> str:
    """Return a text for a plain value; only the type of others, because their repr may differ between runs."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_plain, value)))}}}"
    return f"{type(value).__name__} {value!r}" if isinstance(value, _PLAIN) else type(value).__name__
