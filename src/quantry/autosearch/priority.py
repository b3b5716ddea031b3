"""Which configurations of a finite space are tried, and in which order."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from quantry.autosearch.cost import amount_of_work, kind_of_work, prior_cost
from quantry.autosearch.space import Space
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import NOT_NUMBERED, Trial
from quantry.errors import RecipeError
from quantry.recipe import Recipe
from quantry.stages import WORK, planned_work

ENUMERATION_LIMIT = 50_000
"""Assignments enumerated before a search starts; a larger grid is cut off here, because building recipes takes time."""

# Stages worth sharing: they run the model or rewrite all weights. Plan, scale and emit take milliseconds to seconds.
_EXPENSIVE = tuple(work.name for work in WORK if work.is_shared)
_GROUPS_FIRST = 8

# Constants of `ValueForCost`: trials before it decides anything, trials it compares (so that a choice takes
# milliseconds in a large grid), and the rank of a parameter value that was never tried.
_LEAST_TRIALS = 4
_LOOKAHEAD = 1000
_NEUTRAL = 0.5


@dataclass(frozen=True)
class Removed:
    """Assignments removed from the spaces before the search starts.

    Attributes:
        assignments: Number of assignments enumerated.
        invalid: Error messages to the number of assignments they apply to.
        duplicates: Number of assignments with the same recipe as an earlier one.
        truncated: Whether there were more than `ENUMERATION_LIMIT`.
    """

    assignments: int
    invalid: Mapping[str, int]
    duplicates: int
    truncated: bool = False

    def lines(self) -> Iterator[str]:
        """Yield what to tell the user."""
        invalid = sum(self.invalid.values())
        left = self.assignments - invalid - self.duplicates
        more = f" of the first {ENUMERATION_LIMIT}" if self.truncated else ""
        counts = ((invalid, "invalid"), (self.duplicates, "like others"))
        without = " and ".join(f"{count} {what}" for count, what in counts if count)
        yield f"{left} configurations to try{more}" + (f"; {without} are skipped" if without else "")
        for reason, count in sorted(self.invalid.items(), key=lambda entry: (-entry[1], entry[0])):
            yield f"  {count} invalid: {reason}"


def enumerate_trials(spaces: Sequence[Space]) -> tuple[list[Trial], Removed]:
    """Return a waiting trial for every distinct valid recipe, in order, and what was removed.

    Of assignments with equal recipes, also across spaces, the first stays.

    Raises:
        RecipeError: A parameter is continuous.
    """
    assignments = ((index, assignment) for index, space in enumerate(spaces) for assignment in space.assignments())
    found: dict[Recipe, Trial] = {}
    invalid: Counter[str] = Counter()
    count = 0
    for index, assignment in islice(assignments, ENUMERATION_LIMIT):
        count += 1
        try:
            recipe = spaces[index].build(assignment)
        except RecipeError as error:
            invalid[str(error)] += 1
            continue
        if recipe not in found:
            found[recipe] = Trial(NOT_NUMBERED, recipe, assignment, spaces[index].name, index)
    truncated = next(assignments, None) is not None
    removed = Removed(count, MappingProxyType(dict(invalid)), count - sum(invalid.values()) - len(found), truncated)
    return list(found.values()), removed


def first_trials(spaces: Sequence[Space]) -> list[Trial]:
    """Return a waiting trial for each assignment in ``Space.first``, each recipe once.

    Raises:
        RecipeError: An assignment is an invalid combination.
    """
    found: dict[Recipe, Trial] = {}
    for index, space in enumerate(spaces):
        for assignment in space.first:
            try:
                recipe = space.build(assignment)
            except RecipeError as error:
                raise RecipeError(
                    f"an assignment of Space.first must give a recipe: {error}; "
                    f"got {dict(assignment)} in {space.name!r}"
                ) from error
            found.setdefault(recipe, Trial(NOT_NUMBERED, recipe, assignment, space.name, index))
    return list(found.values())


def always_tried(spaces: Sequence[Space]) -> frozenset[Recipe]:
    """Return the recipes that are tried whatever the limits of the search; see `Space.always`."""
    return frozenset(space.build(assignment) for space in spaces for assignment in space.first[: space.always])


def grid_order(trials: Sequence[Trial], spaces: Sequence[Space]) -> list[Trial]:
    """Return trials so that cheap ones come first and neighbours share as many stages as possible.

    Spaces stay in their order. Within a space, ``Space.first`` comes first; then ``Space.prior`` decides. Without a
    prior, trials with less tuning come first, and those that share an expensive stage are adjacent. One trial of each
    such group, eight at most, is moved to the front: workers that start together then run different float passes
    instead of waiting for the same one.
    """
    places: dict[Any, int] = {}

    def place(key: Any) -> int:
        return places.setdefault(key, len(places))

    def priority(trial: Trial) -> tuple[float, ...]:
        prior = spaces[trial.space_index].prior
        if prior is not None:
            return (prior(trial.assignment),)
        chain = planned_work(trial.recipe)
        work = sum(prior_cost(stage, key) for stage, key in chain if stage == "tune")
        expensive = [(stage, key) for stage, key in chain if stage in _EXPENSIVE]
        return (work, len(expensive), *(place(entry) for entry in expensive))

    first = first_trials(spaces)
    known = {trial.recipe for trial in first}
    ordered: list[Trial] = []
    for index, space in enumerate(spaces):
        ordered += [trial for trial in first if trial.space_index == index]
        own = [(priority(trial), trial) for trial in trials if trial.space_index == index and trial.recipe not in known]
        own.sort(key=lambda pair: pair[0])
        front = _one_of_each_group([keys for keys, _ in own]) if space.prior is None else []
        ordered += [own[number][1] for number in front]
        ordered += [trial for number, (_, trial) in enumerate(own) if number not in front]
    return ordered


def _one_of_each_group(keys: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the first index of each group of equal keys, among the trials with the least tuning."""
    found: dict[tuple[float, ...], int] = {}
    for number, key in enumerate(keys):
        if key[0] == keys[0][0]:
            found.setdefault(key, number)
    return list(found.values())[:_GROUPS_FIRST]


class ValueForCost:
    """Picks the trial with the best value for its cost once the time budget is too short for the rest of a grid.

    The cost is the expected time, counting only stages that no trial has run yet. The value is the odds that a
    configuration beats those tried: for each of its parameter values, the mean rank of the trials with the same value
    (1 for the best trial, 0 for the worst), averaged over the parameters.

    As long as there is time for everything, and without a budget, the order of the grid stays, so that it does not
    depend on the speed of the machine. The same holds for spaces with a prior and for ``Space.first``.

    Args:
        state: The state of the search.
        known: Recipes proposed before an interruption.
    """

    def __init__(self, state: SearchState, known: Sequence[Recipe]) -> None:
        self._state = state
        self._chains: dict[Recipe, tuple[_Link, ...]] = {}
        self._numbers: dict[Any, int] = {}
        self._seen = {link.number for recipe in known for link in self._chain(recipe)}

    def pick(self, remaining: Sequence[Trial]) -> int:
        """Return the index of the trial to run next, and count its stages as seen.

        Args:
            remaining: At least one trial, in the order of the grid.
        """
        chosen = self._best(remaining) if self._is_short_of_time(remaining[0]) else 0
        self._seen |= {link.number for link in self._chain(remaining[chosen].recipe)}
        return chosen

    def _is_short_of_time(self, upcoming: Trial) -> bool:
        state = self._state
        limit = state.options.seconds
        space = state.study.spaces[upcoming.space_index]
        # The first few trials say too little about costs and values.
        if limit is None or len(state.trials) < _LEAST_TRIALS or space.prior is not None:
            return False
        if upcoming.assignment in space.first:
            return False
        work = state.work_left
        return work is not None and work > limit - state.seconds

    def _best(self, remaining: Sequence[Trial]) -> int:
        """Return the index of the trial with the best value for its cost, within the current space of a union."""
        ranks = self._ranks()
        typical = self._state.costs.typical

        def value_for_cost(index: int) -> float:
            trial = remaining[index]
            cost = sum(
                typical(link.stage, link.kind) * link.amount
                for link in self._chain(trial.recipe)
                if link.number not in self._seen
            )
            return _odds(trial, ranks) / max(cost, 1e-9)

        current = remaining[0].space_index
        indices = [index for index, trial in enumerate(remaining[:_LOOKAHEAD]) if trial.space_index == current]
        return max(indices, key=lambda index: (value_for_cost(index), -index))

    def _ranks(self) -> dict[tuple[str, str], list[float]]:
        """Return, for each parameter value, the relative ranks of the trials with that value."""
        trials = sorted(self._state.trials, key=lambda trial: (trial.drop is None, trial.drop or 0.0))
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for rank, trial in enumerate(trials):
            relative = 0.0 if trial.drop is None else 1.0 - rank / max(len(trials) - 1, 1)
            for name, value in trial.assignment.items():
                found[name, str(value)].append(relative)
        return found

    def _chain(self, recipe: Recipe) -> "tuple[_Link, ...]":
        """Return the stages of a recipe; comparing recipes is slow, numbers make the choice among a thousand fast."""
        if recipe not in self._chains:
            self._chains[recipe] = tuple(
                _Link(
                    stage,
                    kind_of_work(stage, key),
                    amount_of_work(stage, key),
                    self._numbers.setdefault((stage, key), len(self._numbers)),
                )
                for stage, key in planned_work(recipe)
            )
        return self._chains[recipe]


class _Link(NamedTuple):
    """A stage of a recipe, what its time depends on, and a number that recipes share with the stage."""

    stage: str
    kind: str
    amount: float
    number: int


def _odds(trial: Trial, ranks: dict[tuple[str, str], list[float]]) -> float:
    """Return the odds that a configuration is better than a random one of those tried.

    Every mean rank includes half a trial of neutral rank, so that a value that was tried once is not taken for certain.
    """
    means = [
        (sum(known) + _NEUTRAL * _NEUTRAL) / (len(known) + _NEUTRAL)
        for name, value in trial.assignment.items()
        for known in (ranks.get((name, str(value)), []),)
    ]
    chance = sum(means) / len(means) if means else _NEUTRAL
    return chance / max(1.0 - chance, 1e-3)
