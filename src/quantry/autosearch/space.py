"""What a search may try: parameters, and how their values become a recipe."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quantry.autosearch.parameter import (
    Choice,
    IntRange,
    Parameter,
    Uniform,
    first_value,
    is_active,
    own_value,
    values_of,
)
from quantry.autosearch.recipe_path import with_fields
from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import Recipe

Assignment = Mapping[str, Any]
"""Names of the parameters that exist, to their values."""


@dataclass(frozen=True)
class Space:
    """Parameters, some of them conditional, and the function that makes a recipe of their values.

    Attributes:
        parameters: Names to parameters. A parameter whose condition does not hold is left out of the assignment.
        build: Returns the recipe of an assignment; raises RecipeError where the values do not go together. Two
            assignments with equal recipes are the same configuration, and only one of them is tried.
        prior: Returns what an assignment is expected to cost, in any unit; the cheap are tried first. None estimates
            it from the stages that a recipe needs.
        name: Tells spaces apart in tables and logs.
        first: Assignments that are tried before all others of the space, such as what is known to be good elsewhere. It
            is an order and no part of what is searched: a search that goes on with another one tries that next.

    Example:
        >>> space = Space.of(Recipe(), {"scale.reduce_range": [False, True]})
        >>> [space.build(assignment).scale.reduce_range for assignment in space.assignments()]
        [False, True]
    """

    parameters: Mapping[str, Parameter]
    build: Callable[[Assignment], Recipe]
    prior: Callable[[Assignment], float] | None = None
    name: str = field(default="space", compare=False)
    first: Sequence[Assignment] = ()

    def __post_init__(self) -> None:
        for name, parameter in self.parameters.items():
            if not isinstance(parameter, Choice | Uniform | IntRange):
                raise RecipeError(f"a parameter must be a Choice, Uniform or IntRange, got {parameter!r}; {name!r}")
        object.__setattr__(self, "parameters", MappingProxyType(_in_order_of_need(self.parameters)))
        wanted = self.first if isinstance(self.first, tuple | list) else (self.first,)
        object.__setattr__(self, "first", tuple(_whole(self, assignment) for assignment in wanted))

    @classmethod
    def of(
        cls,
        base: Recipe,
        fields: Mapping[str, Parameter | Sequence[Any]],
        name: str = "space",
        first: Sequence[Assignment] = (),
    ) -> "Space":
        """Return the space of recipes that differ from one in some fields.

        Args:
            base: The recipe.
            fields: Dotted paths of fields to a parameter, or to the list of their values.
            name: Tells spaces apart.
            first: Assignments that are tried before all others.

        Raises:
            RecipeError: There is no such field, or what comes first is not in the space.

        Example:
            ::

                Space.of(find_preset("XINT8").recipe, {
                    "scale.activation": [MinMSE(), NonOverflow()],
                    "equalize.cross_layer": [None, CrossLayer()],
                    "equalize.cross_layer.steps": Choice([1, 2], only_if={"equalize.cross_layer": CrossLayer()}),
                })
        """
        parameters = {path: _parameter(path, given) for path, given in fields.items()}
        space = cls(parameters, RecipeChanges(base), name=name, first=first)
        _check_paths(space, base)
        return space

    def assignments(self) -> Iterator[Assignment]:
        """Yield every assignment, the first parameter changing slowest.

        Raises:
            RecipeError: A parameter has too many values to name them.
        """
        return _expand(list(self.parameters.items()), {})

    @property
    def is_finite(self) -> bool:
        """Whether every parameter's values can be named one by one."""
        return all(values_of(parameter) is not None for parameter in self.parameters.values())


@dataclass(frozen=True)
class SpaceUnion:
    """Several spaces, tried one after the other in the order given.

    Attributes:
        spaces: The spaces, at least one.
    """

    spaces: tuple[Space, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "spaces", tuple(self.spaces))
        if not self.spaces or not all(isinstance(space, Space) for space in self.spaces):
            raise RecipeError(f"SpaceUnion must hold at least one Space and nothing else, got {self.spaces!r}")


AnySpace = Space | SpaceUnion


def spaces_of(space: AnySpace) -> tuple[Space, ...]:
    """Return the spaces that a search goes through, in order."""
    return space.spaces if isinstance(space, SpaceUnion) else (space,)


@dataclass(frozen=True)
class RecipeChanges:
    """Makes a recipe of dotted paths and values.

    Attributes:
        base: The recipe that is changed.
    """

    base: Recipe

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the changed recipe."""
        return with_fields(self.base, assignment)


def _parameter(path: str, given: Parameter | Sequence[Any]) -> Parameter:
    if isinstance(given, Choice | Uniform | IntRange):
        return given
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise RecipeError(f"a space must have a list of values for each path, got {given!r}; {path!r}")
    return Choice(tuple(given))


def _whole(space: Space, assignment: Any) -> Assignment:
    """Return an assignment in the order of the space's parameters, after checking that it is one of theirs."""
    if not isinstance(assignment, Mapping):
        raise RecipeError(
            f"what a space tries first must be a list of mappings from parameters to values, got {assignment!r} in it"
        )
    found = {
        name: own_value(space.parameters[name], assignment[name]) for name in space.parameters if name in assignment
    }
    needed = [name for name, parameter in space.parameters.items() if is_active(parameter, found)]
    if len(found) != len(assignment) or list(found) != needed:
        raise RecipeError(
            f"what a space tries first must have a value for each of {needed} and for no other, got {dict(assignment)}"
        )
    return found


def _expand(remaining: list[tuple[str, Parameter]], chosen: dict[str, Any]) -> Iterator[Assignment]:
    if not remaining:
        yield dict(chosen)
        return
    (name, parameter), *others = remaining
    if not is_active(parameter, chosen):
        yield from _expand(others, chosen)
        return
    values = values_of(parameter)
    if values is None:
        raise RecipeError(f"a grid needs values that can be listed, got {parameter}; parameter {name!r}")
    for value in values:
        yield from _expand(others, {**chosen, name: value})


def _in_order_of_need(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the parameters so that each comes after those it depends on, else in the order given."""
    ordered: dict[str, Parameter] = {}
    waiting = dict(parameters)
    while waiting:
        ready = [name for name, parameter in waiting.items() if all(other in ordered for other in parameter.only_if)]
        if not ready:
            name, parameter = next(iter(waiting.items()))
            missing = next((other for other in parameter.only_if if other not in parameters), None)
            if missing is None:
                raise RecipeError(f"conditions must not go round in a circle, got {sorted(waiting)}")
            raise RecipeError(
                f"only_if must name parameters of the same space, got {missing!r}"
                f"{nearest_spelling(missing, parameters)}; parameter {name!r}"
            )
        ordered[ready[0]] = waiting.pop(ready[0])
    return ordered


def _check_paths(space: Space, base: Recipe) -> None:
    """Try every path with one value, so that a misspelt one is told at once.

    What lies inside of another parameter's value is there for some of its values only.
    """
    for name, parameter in space.parameters.items():
        if not parameter.only_if and not any(name.startswith(f"{other}.") for other in space.parameters):
            try:
                with_fields(base, {name: first_value(parameter)})
            except RecipeError as error:
                if "a path must" in str(error):
                    raise
