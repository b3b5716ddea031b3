"""Options that several front doors take: the fields of one dataclass.

A field is a keyword in Python, an option on the command line, and a key of a configuration file and of its schema. What
the docstring of the class says about it is its help everywhere; on the command line, the first sentence. Its type says
which values it takes; an `Annotated` type says more, with the words of JSON Schema.
"""

import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from quantry.errors import OptionError, known_keywords, nearest_spelling
from quantry.recipe.checked import field_docs

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FLAGS, _HEADING, _SHOWN = "flags", "heading", "shown"
_NAMES = {bool: "true or false", str: "text", int: "a whole number", float: "a number", Path: "a path"}


def option(default: Any, *flags: str, heading: str = "", shown: str = "") -> Any:
    """Return a field of an options class.

    Args:
        default: Its default.
        flags: Its other names on the command line, such as ``-o``.
        heading: Its heading in the help of the command line; empty for the options that most users need.
        shown: What the help of the command line shows in place of the default None.
    """
    return field(default=default, metadata={_FLAGS: flags, _HEADING: heading, _SHOWN: shown})


def flags_of(entry: "Field[Any]") -> tuple[str, ...]:
    """Return the names of an option on the command line."""
    return (f"--{entry.name.replace('_', '-')}", *entry.metadata.get(_FLAGS, ()))


def heading_of(entry: "Field[Any]") -> str:
    """Return the heading of an option in the help of the command line; empty if it has none."""
    return str(entry.metadata.get(_HEADING, ""))


def shown_default(entry: "Field[Any]") -> str:
    """Return what the help of the command line shows in place of the default None; empty for nothing."""
    return str(entry.metadata.get(_SHOWN, ""))


class CheckedOptions:
    """Base of options classes: values are checked by their types, and what text or lists stand for is converted."""

    def __post_init__(self) -> None:
        for name, annotation in option_types(type(self)).items():
            object.__setattr__(self, name, checked_value(name, annotation, getattr(self, name)))


def option_types(cls: Any) -> dict[str, Any]:
    """Return the types of an options class by field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {entry.name: hints[entry.name] for entry in fields(cls)}


def checked_value(name: str, annotation: Any, value: Any) -> Any:
    """Return a value of an option as its type has it.

    Args:
        name: Name of the option.
        annotation: Its type.
        value: The value, as a user gives it.

    Raises:
        OptionError: It is no value of the type.
    """
    members = _members(annotation)
    for member in members:
        try:
            return _converted(name, member, value)
        except TypeError:
            continue
    # None and -1, which switch an option off, are no hint for somebody who wants it.
    wordy = (member for member in members if member not in (types.NoneType, typing.Literal[-1]))
    expected = " or ".join(map(_expected, wordy))
    literals = (member for member in members if typing.get_origin(member) is typing.Literal)
    choices = [str(choice) for literal in literals for choice in typing.get_args(literal)]
    raise OptionError.of(name, f"must be {expected}, got {value!r}{nearest_spelling(str(value), choices)}")


def _members(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _converted(name: str, annotation: Any, value: Any) -> Any:
    """Return a value as a type has it; TypeError if it is none of it."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        converted = _converted(name, members[0], value)
        if not _holds(dict(members[1:]), converted):
            raise TypeError
        return converted
    if origin is typing.Literal:
        folded = value.casefold() if isinstance(value, str) else value
        if isinstance(value, bool) or folded not in members:
            raise TypeError
        return folded
    if origin is tuple:
        if not isinstance(value, str | list | tuple):
            raise TypeError
        # One value needs no list.
        return tuple(checked_value(name, members[0], item) for item in ((value,) if isinstance(value, str) else value))
    kind = {int: Integral, float: Real, Path: str | Path}.get(annotation, origin or annotation)
    if annotation is Any:
        return value
    # bool is a subclass of int: without this test, True would pass as a number.
    if not isinstance(value, kind) or (isinstance(value, bool) and annotation is not bool):
        raise TypeError
    return annotation(value) if annotation in (int, float, Path) else value


def _holds(constraints: Mapping[str, Any], value: Any) -> bool:
    return (
        ("minimum" not in constraints or value >= constraints["minimum"])
        and ("exclusiveMinimum" not in constraints or value > constraints["exclusiveMinimum"])
        and ("pattern" not in constraints or re.search(constraints["pattern"], value) is not None)
    )


def _expected(annotation: Any) -> str:
    """Return what a value must be, in words."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _expected(members[0]) + "".join(_constraint(*pair) for pair in members[1:])
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, members))}" if len(members) > 1 else str(members[0])
    return "a list" if origin is tuple else _NAMES.get(annotation, "a mapping")


def _constraint(word: str, value: Any) -> str:
    if word == "minimum":
        return f", at least {value}"
    if word == "exclusiveMinimum":
        return f" above {value}"
    return {"unit": f" of {value}", "examples": f" such as {value[0]!r}"}.get(word, "")


def takes_options(
    function_name: str, cls: Any, other_names: Mapping[str, str]
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator of a function that takes the options of a class as keywords, ``**options``.

    Its signature and its docstring name all of them. Unknown keywords raise with a hint.

    Args:
        function_name: The function's name in messages.
        cls: The options class.
        other_names: Names that other libraries use for an argument, for hints.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [parameter.replace(kind=keyword) for parameter in parameters_of(cls).values()]

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        return known_keywords(function_name, other_names)(with_parameters(options, field_docs(cls))(function))

    return decorate


def parameters_of(cls: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a dataclass by field, with its types; limits, which are for programs, are left out."""
    hints = typing.get_type_hints(cls)
    return {
        name: parameter.replace(annotation=hints[name]) for name, parameter in inspect.signature(cls).parameters.items()
    }


def with_parameters(
    parameters: Iterable[inspect.Parameter], docs: Mapping[str, str]
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator of a function whose last argument is ``**options``: it names them in signature and docstring.

    Args:
        parameters: The arguments in place of ``**options``, in their order in a call.
        docs: What each means.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        declared = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        function.__signature__ = signature.replace(parameters=[*declared, *parameters])  # type: ignore[attr-defined]
        function.__doc__ = "\n".join(_documented(inspect.cleandoc(function.__doc__ or ""), docs))
        return function

    return decorate


def _documented(text: str, docs: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a docstring, with the options in place of ``**options``."""
    for line in text.splitlines():
        if not line.startswith("    **options:"):
            yield line
            continue
        for name, meaning in docs.items():
            yield textwrap.fill(f"{name}: {meaning}", 116, initial_indent="    ", subsequent_indent="        ")
