"""A list of configurations as a space."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantry.autosearch import Assignment, Choice, IntRange, Space
from quantry.errors import RecipeError
from quantry.memo import fingerprint
from quantry.onnx.auto_search.configuration import RecipeMaker, flattened
from quantry.recipe import Recipe

INDEX = "config_index"

_MOST_ENTRIES = 1000


@dataclass(frozen=True)
class ListBuild:
    """Makes recipes of places in a list.

    Attributes:
        maker: Knows the starting configuration.
        configurations: The list.
    """

    maker: RecipeMaker
    configurations: tuple[Mapping[str, Any], ...]

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe at a place."""
        return self.maker(self.configurations[place(assignment)])


@dataclass(frozen=True)
class Entry:
    """A place in a list, which reads as what is there.

    Attributes:
        index: The place.
        text: The configuration, for logs and tables.
    """

    index: int
    text: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.index} ({self.text})"


def place(assignment: Assignment) -> int:
    """Return the place in the list, which is the order in which its configurations are tried."""
    found = assignment[INDEX]
    return found.index if isinstance(found, Entry) else int(found)


def list_space(maker: RecipeMaker, configurations: Sequence[Mapping[str, Any]], name: str = "all_configs") -> Space:
    """Return the space of a list of configurations, tried in their order.

    Raises:
        RecipeError: The list is empty, or holds something else.
    """
    if not configurations:
        raise RecipeError("all_configs must hold at least one configuration, got none")
    for configuration in configurations:
        if not isinstance(configuration, Mapping):
            raise RecipeError(
                f"all_configs must hold dicts such as build_all_configs returns, got a {type(configuration).__name__}"
            )
    digest = fingerprint((repr(maker.base), repr(list(configurations)))).short
    build = ListBuild(maker, tuple(configurations))
    return Space({INDEX: _places(configurations)}, build, place, name=f"{name} {digest}")


def _places(configurations: Sequence[Mapping[str, Any]]) -> Choice | IntRange:
    if len(configurations) > _MOST_ENTRIES:
        return IntRange(0, len(configurations) - 1)
    return Choice(tuple(Entry(index, text_of(entry)) for index, entry in enumerate(configurations)))


def text_of(configuration: Mapping[str, Any]) -> str:
    """Return a configuration in one line."""
    flat = flattened(configuration)
    return ", ".join(f"{name.removeprefix('extra_options.')}={_short(value)}" for name, value in flat.items())


def _short(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)
