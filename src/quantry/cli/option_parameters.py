"""Options of commands from the fields of dataclasses, as `quantry.recipe.option_fields` describes them."""

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from quantry.recipe.checked import field_docs
from quantry.recipe.option_fields import flags_of, heading_of, option_types, shown_default

GivenOptions = Mapping[str, Any]
"""Options that the user gave, by field."""


class OptionGroup:
    """Options of a command, or those that several share: a frozen dataclass whose docstring explains the fields.

    A command that has a parameter of such a class, after ``*``, has its options in that place.

    Attributes:
        heading: Heading of the options in the help; empty for none of their own.
    """

    heading: ClassVar[str] = ""


@dataclass(frozen=True)
class OptionsOf:
    """Marks a parameter of a command, ``Annotated[GivenOptions, OptionsOf(A)]``, which gets what the user gave.

    Attributes:
        cls: The options are its fields; their defaults are its own.
        omitted: Fields that are no options of the command line.
    """

    cls: Any
    omitted: tuple[str, ...] = ()

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield the options as parameters that typer reads; None was not given."""
        for field, kind, meaning in _described(self.cls):
            if field.name in self.omitted:
                continue
            flags = flags_of(field)
            info = typer.Option(
                *(flags if len(flags) > 1 else ()),
                help=meaning,
                show_default=_default_text(field),
                rich_help_panel=heading_of(field) or None,
            )
            yield _parameter(field.name, None, Annotated[kind | None, info])

    def taken_from(self, values: dict[str, Any]) -> GivenOptions:
        """Remove the options from the values of the command line and return those that the user gave."""
        names = [field.name for field in fields(self.cls) if field.name not in self.omitted]
        own = {name: values.pop(name) for name in names}
        return {name: value for name, value in own.items() if value is not None and value != []}


@dataclass(frozen=True)
class _GroupOf:
    """The options of an `OptionGroup`.

    Attributes:
        cls: The group.
    """

    cls: Any

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield the options as parameters that typer reads."""
        for field, kind, meaning in _described(self.cls):
            flags = flags_of(field)
            # A flag that is off needs no second name, --no-..., that switches it off.
            names = flags if len(flags) > 1 or field.default is False else ()
            heading, shown = heading_of(field) or self.cls.heading or None, shown_default(field) or True
            info = typer.Option(*names, help=meaning, show_default=shown, rich_help_panel=heading)
            yield _parameter(field.name, field.default, Annotated[kind | None if field.default is None else kind, info])

    def taken_from(self, values: dict[str, Any]) -> Any:
        """Remove the options from the values of the command line and return the group."""
        own = {field.name: values.pop(field.name) for field in fields(self.cls)}
        return self.cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in own.items()})


def options_of(annotation: Any) -> OptionsOf | _GroupOf | None:
    """Return the options that a parameter of a command stands for; None if it is an ordinary one."""
    if isinstance(annotation, type) and issubclass(annotation, OptionGroup):
        return _GroupOf(annotation)
    return next((mark for mark in typing.get_args(annotation) if isinstance(mark, OptionsOf)), None)


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _described(cls: Any) -> "Iterator[tuple[Field[Any], Any, str]]":
    """Yield fields with the type that the command line reads, and their help: the first sentence of the docstring."""
    docs, hints = field_docs(cls), option_types(cls)
    for field in fields(cls):
        kinds = set(_builtin_types(hints[field.name])) - {types.NoneType}
        meaning = re.split(r"(?<=\.) (?=[A-Z])", docs[field.name], maxsplit=1)[0]
        # Text where a type has several forms.
        yield field, kinds.pop() if len(kinds) == 1 else str, meaning


def _builtin_types(annotation: Any) -> Iterator[Any]:
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        yield from _builtin_types(members[0])
    elif origin is typing.Literal:
        yield from map(type, members)
    elif origin is tuple:
        yield list[str]
    elif origin is not None:
        for member in members:
            yield from _builtin_types(member)
    else:
        yield annotation if annotation in (bool, int, float, Path, types.NoneType) else str


def _default_text(field: "Field[Any]") -> str | bool:
    """Return how the help shows the default of an option that is None if it was not given; False for none."""
    default = None if field.default is MISSING else field.default
    if isinstance(default, bool):
        return field.name if default else f"no-{field.name}"
    return (", ".join(default) if isinstance(default, tuple) else "" if default is None else str(default)) or False
