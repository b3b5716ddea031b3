"""A list of configurations as a space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantry.autosearch import Assignment, IntRange, Space
from quantry.errors import RecipeError
from quantry.memo import fingerprint
from quantry.onnx.auto_search.configuration import RecipeMaker
from quantry.recipe import Recipe

INDEX = "config_index"


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
        return self.maker(self.configurations[assignment[INDEX]])


def place(assignment: Assignment) -> float:
    """Return the place in the list, which is the order in which its configurations are tried."""
    return float(assignment[INDEX])


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
    last = len(configurations) - 1
    build = ListBuild(maker, tuple(configurations))
    return Space({INDEX: IntRange(0, last)}, build, place, name=f"{name} {digest}")
