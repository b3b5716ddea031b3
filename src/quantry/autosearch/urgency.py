"""Which configuration to try next where there is not time for all of them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from quantry.autosearch.configurations import Configuration
from quantry.autosearch.cost import stage_chain, tuning_work
from quantry.autosearch.ledger import Ledger
from quantry.recipe import Recipe

_SETTLED = 4
"""So many trials must be settled before they say anything."""

_LOOKED_AT = 1000
"""So many of the next configurations are compared."""

_EVEN = 0.5
"""The standing of a value that no trial has had, and the weight of one such trial in all others."""


class Urgency:
    """Chooses the configuration with the most value for its cost, as soon as the time limit is too short for the rest.

    The cost is estimated from the trace so far, and counts only stages that no trial had before. The value is the odds
    that a configuration is better than one of those tried: for each of its parameters' values the mean standing of the
    trials that had the same, 1 for the best trial and 0 for the worst, averaged over the parameters.

    While there is time for everything, and without a time limit, the first of the list is next, so that the order does
    not depend on how fast a machine is. Spaces with a prior of their own keep their order too, and what a space wants
    to be first is.

    Args:
        ledger: Knows what is settled, and what it took.
        known: What was proposed before an interruption.
    """

    def __init__(self, ledger: Ledger, known: Sequence[Recipe]) -> None:
        self._ledger = ledger
        self._chains: dict[Recipe, tuple[tuple[str, float, int], ...]] = {}
        self._numbers: dict[Any, int] = {}
        self._seen = {number for recipe in known for _, _, number in self._chain(recipe)}

    def first(self, left: Sequence[Configuration]) -> int:
        """Return the place of the configuration to try next, and count its stages as seen.

        Args:
            left: What is left, at least one, in order of priority.
        """
        chosen = self._best(left) if self._is_short_of_time(left[0]) else 0
        self._seen |= {number for _, _, number in self._chain(left[chosen].recipe)}
        return chosen

    def _is_short_of_time(self, upcoming: Configuration) -> bool:
        ledger = self._ledger
        limit = ledger.options.stop.seconds
        space = ledger.study.spaces[upcoming.space]
        if limit is None or len(ledger.trials) < _SETTLED or space.prior is not None:
            return False
        if upcoming.assignment in space.first:
            return False
        work = ledger.work_left
        return work is not None and work > limit - ledger.seconds

    def _best(self, left: Sequence[Configuration]) -> int:
        """Return the place of the one with the most value for its cost, of the space whose turn it is."""
        standings = self._standings()
        typical = self._ledger.costs.typical

        def value_for_cost(place: int) -> float:
            configuration = left[place]
            cost = sum(
                typical(stage) * work
                for stage, work, number in self._chain(configuration.recipe)
                if number not in self._seen
            )
            return _odds(configuration, standings) / max(cost, 1e-9)

        turn = left[0].space
        places = [place for place, entry in enumerate(left[:_LOOKED_AT]) if entry.space == turn]
        return max(places, key=lambda place: (value_for_cost(place), -place))

    def _standings(self) -> dict[tuple[str, str], list[float]]:
        """Return for each value of a parameter the standings of the trials that had it."""
        trials = sorted(self._ledger.trials, key=lambda trial: (trial.drop is None, trial.drop or 0.0))
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for rank, trial in enumerate(trials):
            standing = 0.0 if trial.drop is None else 1.0 - rank / max(len(trials) - 1, 1)
            for name, value in trial.assignment.items():
                found[name, str(value)].append(standing)
        return found

    def _chain(self, recipe: Recipe) -> tuple[tuple[str, float, int], ...]:
        """Return the stages of a recipe: name, work relative to a typical one, and a number that shared ones share."""
        if recipe not in self._chains:
            self._chains[recipe] = tuple(
                (stage, tuning_work(key) if stage == "tune" else 1.0, self._number((stage, key)))
                for stage, key in stage_chain(recipe)
            )
        return self._chains[recipe]

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _odds(configuration: Configuration, standings: dict[tuple[str, str], list[float]]) -> float:
    """Return the odds that a configuration is better than one of those that were tried."""
    means = [
        (sum(known) + _EVEN * _EVEN) / (len(known) + _EVEN)
        for name, value in configuration.assignment.items()
        for known in (standings.get((name, str(value)), []),)
    ]
    chance = sum(means) / len(means) if means else _EVEN
    return chance / max(1.0 - chance, 1e-3)
