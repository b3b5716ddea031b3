"""From a space to the list of configurations worth trying."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from quantry.autosearch.space import Assignment, Space
from quantry.errors import RecipeError
from quantry.recipe import Recipe

ENUMERATION_LIMIT = 50_000
"""So many assignments are looked at before a search begins; a grid over more of them takes the first ones."""


@dataclass(frozen=True)
class Configuration:
    """One thing to try.

    Attributes:
        space: Index of the space it is from.
        assignment: Values of the parameters.
        recipe: What they stand for.
    """

    space: int
    assignment: Assignment
    recipe: Recipe


@dataclass(frozen=True)
class Removed:
    """What was taken out of a space before anything ran.

    Attributes:
        assignments: How many assignments there were.
        invalid: Reasons to how many were refused for it.
        equivalent: How many mean the same as an earlier one.
        beyond: Whether there were more than `ENUMERATION_LIMIT`, and the rest was not looked at.
    """

    assignments: int
    invalid: Mapping[str, int]
    equivalent: int
    beyond: bool = False

    def lines(self) -> Iterator[str]:
        """Yield what to tell the user."""
        invalid = sum(self.invalid.values())
        left = self.assignments - invalid - self.equivalent
        more = f" of the first {ENUMERATION_LIMIT}" if self.beyond else ""
        yield (
            f"{left} configurations to try{more}: {self.assignments} assignments, of which {invalid} are invalid and "
            f"{self.equivalent} mean the same as another"
        )
        for reason, count in sorted(self.invalid.items(), key=lambda entry: (-entry[1], entry[0])):
            yield f"  {count} invalid: {reason}"


def enumerate_configurations(spaces: Sequence[Space]) -> tuple[list[Configuration], Removed]:
    """Return every distinct valid configuration, in order, and what was removed.

    Two assignments mean the same when their recipes are equal, also across spaces; the first one stays.

    Raises:
        RecipeError: A parameter has too many values to name them.
    """
    assignments = ((index, assignment) for index, space in enumerate(spaces) for assignment in space.assignments())
    found: dict[Recipe, Configuration] = {}
    invalid: Counter[str] = Counter()
    count = 0
    for index, assignment in islice(assignments, ENUMERATION_LIMIT):
        count += 1
        try:
            recipe = spaces[index].build(assignment)
        except RecipeError as error:
            invalid[str(error)] += 1
            continue
        found.setdefault(recipe, Configuration(index, assignment, recipe))
    beyond = next(assignments, None) is not None
    removed = Removed(count, MappingProxyType(dict(invalid)), count - sum(invalid.values()) - len(found), beyond)
    return list(found.values()), removed


def first_configurations(spaces: Sequence[Space]) -> list[Configuration]:
    """Return what the spaces want to be tried before all else, each recipe once.

    Raises:
        RecipeError: Its values do not go together.
    """
    found: dict[Recipe, Configuration] = {}
    for index, space in enumerate(spaces):
        for assignment in space.first:
            try:
                recipe = space.build(assignment)
            except RecipeError as error:
                raise RecipeError(
                    f"what a space tries first must give a recipe: {error}; got {dict(assignment)} in {space.name!r}"
                ) from error
            found.setdefault(recipe, Configuration(index, assignment, recipe))
    return list(found.values())
