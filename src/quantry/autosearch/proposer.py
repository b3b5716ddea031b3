"""Proposes the next trial: from a list, or drawn by a sampler."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from quantry.autosearch.combinations import combined_improvements
from quantry.autosearch.priority import ValueForCost, always_tried, enumerate_trials, first_trials, grid_order
from quantry.autosearch.samplers import KINDS, SamplerKind, quiet_optuna, suggest
from quantry.autosearch.space import Assignment, Space
from quantry.autosearch.state import SearchState
from quantry.autosearch.study import SearchStudy
from quantry.autosearch.target_space import TargetRecipes
from quantry.autosearch.trial import Trial
from quantry.errors import RecipeError
from quantry.recipe import Recipe
from quantry.runtime.threads import one_torch_thread

LOOK_AHEAD = 4
"""How many trials a learning sampler proposes before it gets the score of the first of them.

It is the same for any number of workers, so that the number of workers does not change what is proposed.
"""

# Draws without anything new before the sampler counts as converged. A draw takes milliseconds, a trial seconds.
_REPEATS = 20

# A trial that takes more than three times as long as the usual one may take 10 % of the time left, so that a single
# one does not use up a short search.
_USUAL, _EXPENSIVE_SHARE = 3.0, 0.1


class Proposer(Protocol):
    """Proposes trials one by one; each is valid and differs from all before.

    Attributes:
        look_ahead: How many trials may be proposed before the first is finished; None is any number.
        recipes: What will be tried, in order, as far as that is known.
        short_of_time: Whether something was skipped because it would take too long.
    """

    look_ahead: int | None
    recipes: Sequence[Recipe]
    short_of_time: bool

    def next(self, number: int, finished: int) -> Trial | None:
        """Return the next trial, saved in the study; None if there is no other.

        Args:
            number: Its number.
            finished: The proposal may depend on the scores of trials with lower numbers than this, and on no others.
        """
        ...


class ListProposer:
    """Proposes trials from a list.

    Args:
        study: Where they are saved.
        trials: All trials, without numbers.
        known: Recipes proposed before an interruption.
        order: Picks the next one; None takes them in order.
        flat: Save them in the form that samplers of continuous spaces learn from.

    Attributes:
        recipes: All recipes, in the order they are tried as far as that is decided.
    """

    look_ahead: int | None = None
    short_of_time = False

    def __init__(
        self,
        study: SearchStudy,
        trials: Sequence[Trial],
        known: Sequence[Recipe],
        order: ValueForCost | None = None,
        *,
        flat: bool = False,
    ) -> None:
        self._study = study
        self._order = order
        self._flat = flat
        proposed = set(known)
        self._remaining = [trial for trial in trials if trial.recipe not in proposed]
        self._proposed = len(known)
        self._recipes = [*known, *(trial.recipe for trial in self._remaining)]
        self.recipes: Sequence[Recipe] = self._recipes

    def next(self, number: int, finished: int) -> Trial | None:
        """Return the next trial of the list."""
        self._study.tell_sampler(finished)
        if not self._remaining:
            return None
        index = 0 if self._order is None else self._order.pick(self._remaining)
        # In place: the search state holds the same list to estimate the time left.
        self._recipes.insert(self._proposed, self._recipes.pop(self._proposed + index))
        self._proposed += 1
        return self._study.add(number, self._remaining.pop(index), flat=self._flat)


class SampledProposer:
    """Proposes trials that a sampler of the study draws.

    Invalid draws are counted and repeated. So are duplicates; the sampler gets their known score once more. If many
    draws give nothing new, some are drawn at random, and then the rest of a finite space follows in order.

    Args:
        state: The state of the search, with its study and options.
        known: Recipes proposed before an interruption, to the numbers of their trials.
        listed: All trials, if the space could be enumerated.
    """

    look_ahead: int | None = LOOK_AHEAD

    def __init__(self, state: SearchState, known: dict[Recipe, int], listed: Sequence[Trial] | None = None) -> None:
        self._state = state
        self._study = study = state.study
        # A grid cannot list a space with suggestions: it tries these and draws nothing.
        self._draws = state.options.sampler in KINDS
        self._kind = KINDS[state.options.sampler if self._draws else "random"]
        self._first = ListProposer(study, first_trials(study.spaces), list(known), flat=self._kind.flat)
        self._suggestions = [entry for index, space in enumerate(study.spaces) for entry in _suggestions(index, space)]
        self._last_suggested = -1
        self._seed = state.options.seed
        state.upcoming = self._upcoming
        self._listed = listed
        self._numbers = dict(known)
        self._rest: ListProposer | None = None
        self.recipes: Sequence[Recipe] = ()
        self.invalid: Counter[str] = Counter()
        self.duplicates = 0
        self.short_of_time = False

    def next(self, number: int, finished: int) -> Trial | None:
        """Return the next trial of ``Space.first``, then draw until something new comes."""
        self._study.tell_sampler(finished)
        first = self._first.next(number, finished)
        if first is not None:
            self._numbers[first.recipe] = number
            return first
        suggested = self._suggested(number)
        if suggested is not None:
            return suggested
        if self._rest is None:
            everything = self._listed is not None and len(self._numbers) >= len(self._listed)
            # A sampler that has converged proposes the same few values again and again; random draws find others.
            kinds = [self._kind] * _REPEATS + [KINDS["random"]] * 5 * _REPEATS
            for kind in kinds if self._draws and not everything else ():
                trial = self._draw(number, kind)
                if trial is not None:
                    return trial
            self._rest = ListProposer(self._study, self._listed or (), list(self._numbers), flat=self._kind.flat)
        return self._rest.next(number, finished)

    def _suggested(self, number: int) -> Trial | None:
        """Return the next suggestion that is new, valid and does not take a large part of the time left."""
        while self._suggestions:
            index, assignment = self._suggestions.pop(0)
            space = self._study.spaces[index]
            if assignment is None:
                combined = combined_improvements(space, self._seen_by(self._last_suggested + 1))
                self._suggestions[:0] = [(index, each) for each in combined]
                continue
            try:
                recipe = space.build(assignment)
            except RecipeError as error:
                self.invalid[str(error)] += 1
                continue
            if recipe in self._numbers:
                self._last_suggested = max(self._last_suggested, self._numbers[recipe])
            elif self._is_worth(recipe):
                self._numbers[recipe] = self._last_suggested = number
                waiting = Trial(number, recipe, assignment, space.name, index)
                return self._study.add(number, waiting, flat=self._kind.flat)
        return None

    def _seen_by(self, number: int) -> list[Trial]:
        """Return the trials that the proposal of a trial may depend on, whenever and by whom it is made.

        A search that is resumed must combine the same trials as one that was not interrupted.
        """
        race = 2 * LOOK_AHEAD
        seen = race * (number // race) if self._state.options.racing else number + 1 - LOOK_AHEAD
        return self._state.trials[: max(seen, 0)]

    def _upcoming(self, count: int) -> tuple[list[Recipe], int]:
        """Return what is known to be tried next, at most this many recipes, and how many of them are proposed."""
        done, finished = len(self._state.trials), self._state.finished
        found = [recipe for recipe, number in self._numbers.items() if number >= done and number not in finished]
        proposed = len(found)
        found += [recipe for recipe in self._first.recipes if recipe not in self._numbers]
        known = {*self._numbers, *found}
        for index, assignment in self._suggestions:
            if len(found) >= count:
                break
            if assignment is None:
                continue
            build = self._study.spaces[index].build
            with suppress(RecipeError):
                recipe = build.expected(assignment) if isinstance(build, TargetRecipes) else build(assignment)
                if recipe not in known:
                    found.append(recipe)
        return found[:count], proposed

    def _is_worth(self, recipe: Recipe) -> bool:
        """Return whether there is time for a trial: expensive ones may take a small share of the time left only."""
        left, trials = self._state.time.left, self._state.trials
        if left is None or not trials:
            return True
        usual = sum(trial.seconds for trial in trials) / len(trials)
        worth = self._state.estimated_seconds(recipe) <= min(left, max(_EXPENSIVE_SHARE * left, _USUAL * usual))
        self.short_of_time |= not worth
        return worth

    def _draw(self, number: int, kind: SamplerKind) -> Trial | None:
        study, spaces = self._study.study, self._study.spaces
        seed = self._seed if kind.one_seed else _seed_of_draw(self._seed, self._study.draws)
        # The matrices of the Gaussian process are tiny; next to busy workers, waiting for other threads makes it 100x
        # slower.
        with quiet_optuna(), one_torch_thread():
            study.sampler = kind.make(seed)
            drawn = study.ask()
            index, assignment = suggest(drawn, spaces, flat=self._kind.flat)
        try:
            recipe = spaces[index].build(assignment)
        except RecipeError as error:
            self.invalid[str(error)] += 1
            self._study.tell(drawn.number, None)
            return None
        if not self._is_worth(recipe):
            self._study.tell(drawn.number, None)
            return None
        if recipe in self._numbers:
            self.duplicates += 1
            self._study.tell(drawn.number, self._study.values(self._numbers[recipe]))
            return None
        self._numbers[recipe] = number
        return self._study.adopt(drawn, Trial(number, recipe, assignment, spaces[index].name, index))


def _suggestions(index: int, space: Space) -> Iterator[tuple[int, Assignment | None]]:
    """Yield the suggestions of a space with its index; None stands for combinations of those before it."""
    for place, assignment in enumerate(space.suggestions):
        if place == space.combine_after:
            yield index, None
        yield index, assignment
    if space.combine_after is not None and space.combine_after >= len(space.suggestions):
        yield index, None


def make_proposer(state: SearchState, known: Sequence[Trial]) -> tuple[Proposer, tuple[str, ...]]:
    """Return the proposer of a search, and notes on what was removed from the spaces.

    Args:
        state: The state of the search, with its study and options.
        known: Trials proposed before an interruption.

    Raises:
        RecipeError: No configuration is valid, or a grid has a continuous parameter.
    """
    study, options = state.study, state.options
    spaces = study.spaces
    study.abandon_unnumbered()
    numbers = {trial.recipe: trial.number for trial in known}
    state.try_always(always_tried(spaces))
    finite = all(space.is_finite for space in spaces)
    if not finite and (options.sampler != "grid" or any(space.suggestions for space in spaces)):
        return SampledProposer(state, numbers), ()
    trials, removed = enumerate_trials(spaces)
    if not trials:
        raise RecipeError(f"a space must hold a valid configuration, got none; {'; '.join(removed.lines())}")
    notes = tuple(removed.lines())
    if options.sampler == "grid":
        order = ValueForCost(state, list(numbers))
        return ListProposer(study, grid_order(trials, spaces), list(numbers), order), notes
    if options.sampler == "random" and not removed.truncated:
        random.Random(options.seed).shuffle(trials)  # noqa: S311 - not for cryptography
        # Space.first repeats recipes of the list; each is tried once, at its first place.
        ordered = {trial.recipe: trial for trial in (*first_trials(spaces), *trials)}
        return ListProposer(study, list(ordered.values()), list(numbers)), notes
    return SampledProposer(state, numbers, None if removed.truncated else trials), notes


def _seed_of_draw(seed: int, draw: int) -> int:
    # Any formula works that gives different seeds for consecutive draws and fits Optuna's 31 bits.
    return (seed * 1_000_003 + draw * 7919 + 12345) % (1 << 31)
