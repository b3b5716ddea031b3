"""Search spaces: parameters and how their values become a recipe."""

import dataclasses
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
from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import Recipe
from quantry.targets import Target

Assignment = Mapping[str, Any]
"""Names of the active parameters to their values."""

_WHOLE = ""


class PathError(RecipeError):
    """A path of a search space leads to no field of the recipe."""


@dataclass(frozen=True)
class Space:
    """Parameters, some of them conditional, and the function that builds a recipe from their values.

    Attributes:
        parameters: Names to parameters. A parameter whose condition does not hold is not part of the assignment.
        build: Returns the recipe of an assignment; raises RecipeError for an invalid combination. Assignments with
            equal recipes are the same configuration, and only one of them is tried.
        prior: Returns the expected cost of an assignment in any unit; cheap ones are tried first. None estimates it
            from the stages that the recipe needs.
        name: Shown in tables and logs.
        first: Assignments to try before all others of the space, such as a configuration that worked for another
            model. It only sets the order and is not part of the search's identity: a resumed search with another
            ``first`` tries that next.
        always: How many of ``first`` are tried whatever the limits of the search, and are never pruned by a race: the
            result is then never worse than any of them.
        suggestions: Assignments for the sampler to try and learn from after ``first``. Each is built when its turn
            comes, and skipped if it is an invalid combination, or expensive and there is too little time left.
        combine_after: After this many suggestions, those that differ from the first entry of ``first`` in one parameter
            and improved on it are tried together. None combines nothing.
        notes: What the user should know about the space; part of the notes of the search.
        target: Where the models will run: trials are scored with its arithmetic, as `quantry.targets.computed_for`
            describes. None if a recipe names its target, or none is known.

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
    always: int = 0
    suggestions: Sequence[Assignment] = ()
    combine_after: int | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    target: Target | None = None

    def __post_init__(self) -> None:
        for name, parameter in self.parameters.items():
            if not isinstance(parameter, Choice | Uniform | IntRange):
                raise RecipeError(f"a parameter must be a Choice, Uniform or IntRange, got {parameter!r}; {name!r}")
        object.__setattr__(self, "parameters", MappingProxyType(_dependencies_first(self.parameters)))
        wanted = self.first if isinstance(self.first, tuple | list) else (self.first,)
        object.__setattr__(self, "first", tuple(_checked(self, assignment) for assignment in wanted))
        object.__setattr__(self, "suggestions", tuple(_checked(self, each) for each in self.suggestions))
        if not 0 <= self.always <= len(self.first):
            raise RecipeError(f"Space.always must be between 0 and the {len(self.first)} of first, got {self.always!r}")

    @classmethod
    def of(
        cls,
        base: Recipe,
        fields: Mapping[str, Parameter | Sequence[Any]],
        name: str = "space",
        first: Sequence[Assignment] = (),
    ) -> "Space":
        """Return the space of recipes that differ from a base recipe in some fields.

        Args:
            base: The base recipe.
            fields: Dotted paths of fields to a parameter or to a list of values.
            name: Shown in tables and logs.
            first: Assignments to try before all others.

        Raises:
            RecipeError: There is no such field, or ``first`` is not in the space.

        Example:
            ::

                Space.of(find_preset("XINT8").recipe, {
                    "scale.activation": [MinMSE(), NonOverflow()],
                    "equalize.cross_layer": [None, CrossLayer()],
                    "equalize.cross_layer.steps": Choice([1, 2], only_if={"equalize.cross_layer": CrossLayer()}),
                })
        """
        parameters = {path: as_parameter(path, given) for path, given in fields.items()}
        space = cls(parameters, RecipeChanges(base), name=name, first=first)
        _check_paths(space, base)
        return space

    def assignments(self) -> Iterator[Assignment]:
        """Yield every assignment, the first parameter changing slowest.

        Raises:
            RecipeError: A parameter is continuous.
        """
        return _expand(list(self.parameters.items()), {})

    @property
    def is_finite(self) -> bool:
        """Whether the assignments can be enumerated."""
        return all(values_of(parameter) is not None for parameter in self.parameters.values())

    @property
    def first_recipe(self) -> Recipe | None:
        """The recipe of every parameter's first value; None if that is an invalid combination."""
        assignment: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if is_active(parameter, assignment):
                assignment[name] = first_value(parameter)
        try:
            return self.build(assignment)
        except RecipeError:
            return None


@dataclass(frozen=True)
class SpaceUnion:
    """Several spaces, tried in the given order.

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
    """Return the spaces of a search, in order."""
    return space.spaces if isinstance(space, SpaceUnion) else (space,)


def example_recipe(spaces: Sequence[Space]) -> Recipe:
    """Return some recipe of the spaces: all of them prepare a model with the same inputs."""
    return next((recipe for recipe in (space.first_recipe for space in spaces) if recipe is not None), Recipe())


@dataclass(frozen=True)
class RecipeChanges:
    """Builds recipes from dotted paths and values; a class and not a closure, because workers may need to pickle it.

    Attributes:
        base: The recipe that is changed.
    """

    base: Recipe

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the changed recipe."""
        return with_fields(self.base, assignment)


def with_fields(base: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some fields changed, all at once, so that intermediate states need not be valid.

    Args:
        base: The recipe to start from.
        changes: Dotted paths to values, such as ``{"scale.activation": MinMax(), "tune.steps.0.iterations": 500}``. A
            path into a field that is also changed applies to its new value.

    Returns:
        The changed recipe.

    Raises:
        RecipeError: There is no such field, or the result is not a valid recipe.

    Example:
        >>> with_fields(Recipe(), {"scale.reduce_range": True}).scale.reduce_range
        True
    """
    tree: dict[str, Any] = {}
    for path, value in changes.items():
        node = tree
        for part in path.split("."):
            node = node.setdefault(part, {})
        node[_WHOLE] = value
    changed = _changed(base, tree, "")
    assert isinstance(changed, Recipe)
    return changed


def _changed(current: Any, tree: Mapping[str, Any], where: str) -> Any:
    value = tree.get(_WHOLE, current)
    parts = {part: branch for part, branch in tree.items() if part != _WHOLE}
    if not parts:
        return value
    if isinstance(value, tuple):
        return _changed_tuple(value, parts, where)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise PathError(f"a path must lead to a field, got {_joined(where, next(iter(parts)))!r}; {value!r} has none")
    names = [part.name for part in dataclasses.fields(value) if part.init]
    for part in parts:
        if part not in names:
            raise PathError(
                f"a path must lead to a field, got {_joined(where, part)!r}{nearest_spelling(part, names)} "
                f"({type(value).__name__} has {names})"
            )
    fields = {part: _changed(getattr(value, part), branch, _joined(where, part)) for part, branch in parts.items()}
    return dataclasses.replace(value, **fields)


def _changed_tuple(value: tuple[Any, ...], parts: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    items = list(value)
    for part, branch in parts.items():
        if not part.isdigit() or int(part) >= len(items):
            raise PathError(
                f"a path must name one of the {len(items)} items by its index, got {_joined(where, part)!r}"
            )
        items[int(part)] = _changed(items[int(part)], branch, _joined(where, part))
    return tuple(items)


def _joined(where: str, part: str) -> str:
    return f"{where}.{part}" if where else part


def as_parameter(path: str, given: Parameter | Sequence[Any]) -> Parameter:
    """Return a parameter; a list of values is a `Choice`.

    Raises:
        RecipeError: It is neither.
    """
    if isinstance(given, Choice | Uniform | IntRange):
        return given
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise RecipeError(f"a space must have a list of values for each path, got {given!r}; {path!r}")
    return Choice(tuple(given))


def _checked(space: Space, assignment: Any) -> Assignment:
    """Check an assignment of ``first`` and return it in the order of the space's parameters."""
    if not isinstance(assignment, Mapping):
        raise RecipeError(f"Space.first must be a list of mappings from parameters to values, got {assignment!r} in it")
    found = {
        name: own_value(space.parameters[name], assignment[name]) for name in space.parameters if name in assignment
    }
    needed = [name for name, parameter in space.parameters.items() if is_active(parameter, found)]
    if len(found) != len(assignment) or list(found) != needed:
        raise RecipeError(
            f"an assignment of Space.first must have a value for each of {needed} and for no other, "
            f"got {dict(assignment)}"
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


def _dependencies_first(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the parameters so that each comes after those it depends on, otherwise in the given order."""
    ordered: dict[str, Parameter] = {}
    waiting = dict(parameters)
    while waiting:
        ready = [name for name, parameter in waiting.items() if all(other in ordered for other in parameter.only_if)]
        if not ready:
            name, parameter = next(iter(waiting.items()))
            missing = next((other for other in parameter.only_if if other not in parameters), None)
            if missing is None:
                raise RecipeError(f"conditions must not be circular, got {sorted(waiting)}")
            raise RecipeError(
                f"only_if must name parameters of the same space, got {missing!r}"
                f"{nearest_spelling(missing, parameters)}; parameter {name!r}"
            )
        ordered[ready[0]] = waiting.pop(ready[0])
    return ordered


def _check_paths(space: Space, base: Recipe) -> None:
    """Try every path with one value, so that a misspelled path is an error at once.

    Paths inside the value of another parameter, and conditional ones, exist only for some values and are skipped.
    """
    for name, parameter in space.parameters.items():
        if not parameter.only_if and not any(name.startswith(f"{other}.") for other in space.parameters):
            # A valid path with an invalid value is fine here: other parameters may make the combination valid.
            try:
                with_fields(base, {name: first_value(parameter)})
            except PathError:
                raise
            except RecipeError:
                continue
