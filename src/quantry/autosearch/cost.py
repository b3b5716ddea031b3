"""What a configuration will cost, and in which order to try configurations."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from quantry.autosearch.configurations import Configuration, first_configurations
from quantry.autosearch.outcome import Outcome
from quantry.autosearch.space import Space
from quantry.recipe import EqualizeOptions, Recipe

_PRIOR_SECONDS = {
    "prepare": 1.0,
    "convert": 0.5,
    "equalize": 0.5,
    "plan": 0.1,
    "observe": 5.0,
    "mix": 20.0,
    "scale": 1.0,
    "tune": 60.0,
    "emit": 0.5,
    "evaluate": 3.0,
}
"""What stages cost relative to each other on a small convolutional network, until the first of each has run."""

_TYPICAL_ITERATIONS = 1000
_EXPENSIVE = ("prepare", "convert", "equalize", "observe", "mix")
_FIRSTS = 8


def stage_chain(recipe: Recipe) -> tuple[tuple[str, Any], ...]:
    """Return the stages a recipe needs, each with a key that is equal where two recipes share its result."""
    prepared: Any = dataclasses.replace(recipe.prepare, npu=None)
    chain: list[tuple[str, Any]] = [("prepare", prepared)]
    if recipe.prepare.npu is not None:
        # What is kept in float is not converted.
        prepared = (prepared, recipe.prepare.npu, recipe.plan.selection, recipe.plan.layers)
        chain.append(("convert", prepared))
    if recipe.equalize != EqualizeOptions():
        prepared = (prepared, recipe.equalize)
        chain.append(("equalize", prepared))
    observed = (prepared, recipe.observe)
    chain += [("plan", (prepared, recipe.plan)), ("observe", observed)]
    planned: Any = recipe.plan
    mixed = getattr(recipe, "mix", None)
    if mixed is not None and mixed != type(mixed)():
        planned = (recipe.plan, mixed)
        chain.append(("mix", (observed, planned)))
    scaled = (observed, planned, recipe.scale)
    chain.append(("scale", scaled))
    steps = recipe.tune.steps
    chain += [("tune", (scaled, steps[: count + 1])) for count in range(len(steps))]
    return (*chain, ("emit", recipe), ("evaluate", recipe))


def _with_ranges(recipe: Recipe) -> tuple[tuple[str, Any], ...]:
    # Whether equalization changes anything is not known before; where it does not, ranges are shared across it.
    ranges = (recipe.observe, recipe.plan.activation, recipe.scale.activation)
    return (*stage_chain(recipe), ("ranges", ranges))


class CostModel:
    """Estimates what a trial will take, from a prior and from what the trials so far took."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, Any]] = set()
        self._seconds: dict[str, list[float]] = {}

    def estimate(self, recipe: Recipe) -> float:
        """Return the seconds that a trial of a recipe will take, counting only stages that none had before."""
        return sum(
            self.typical(stage) * (tuning_work(key) if stage == "tune" else 1.0)
            for stage, key in stage_chain(recipe)
            if (stage, key) not in self._seen
        )

    def estimate_all(self, recipes: Iterable[Recipe]) -> float:
        """Return the seconds that several trials will take, one after the other."""
        seen = set(self._seen)
        total = 0.0
        for recipe in recipes:
            total += self.estimate(recipe)
            self._seen |= set(stage_chain(recipe))
        self._seen = seen
        return total

    def unfinished(self, recipe: Recipe) -> set[tuple[str, Any]]:
        """Return what a trial of a recipe needs that no settled trial had: stages, and ranges of activations.

        Workers remember ranges by themselves; they take longer to choose than anything else of the scale stage.
        """
        return set(_with_ranges(recipe)) - self._seen

    def learn(self, recipe: Recipe, outcome: Outcome) -> None:
        """Take in what a trial took."""
        chain = stage_chain(recipe)
        self._seen |= set(_with_ranges(recipe))
        if outcome.state == "failed" or outcome.same_as is not None:
            return
        work = sum(tuning_work(key) for stage, key in chain if stage == "tune") or 1.0
        for stage, seconds in outcome.computed.items():
            self._seconds.setdefault(stage, []).append(seconds / work if stage == "tune" else seconds)
        self._seconds.setdefault("evaluate", []).append(max(outcome.seconds - sum(outcome.computed.values()), 0.0))

    def typical(self, stage: str) -> float:
        """Return the seconds that a stage takes: the mean of those that ran, or the prior at the pace of those."""
        taken = self._seconds.get(stage)
        return sum(taken) / len(taken) if taken else _PRIOR_SECONDS[stage] * self._pace()

    def _pace(self) -> float:
        """Return how much slower than the prior the stages were that have run."""
        known = [
            (sum(taken) / len(taken), _PRIOR_SECONDS[name])
            for name, taken in self._seconds.items()
            if name in _PRIOR_SECONDS
        ]
        return sum(taken for taken, _ in known) / sum(prior for _, prior in known) if known else 1.0


def in_order_of_priority(configurations: Sequence[Configuration], spaces: Sequence[Space]) -> list[Configuration]:
    """Return configurations so that the cheap come first and neighbours share as many stages as they can.

    Spaces stay in their order. Within one, what it wants to be first is; then its own prior decides. Without one,
    configurations that need less tuning come first, and those that share an expensive stage stand together. The first
    of each such group, eight at most, come before all others: workers that begin together then have a float pass each,
    and none waits for another's.
    """
    places: dict[Any, int] = {}

    def place(key: Any) -> int:
        return places.setdefault(key, len(places))

    def priority(configuration: Configuration) -> tuple[float, ...]:
        prior = spaces[configuration.space].prior
        if prior is not None:
            return (prior(configuration.assignment),)
        chain = stage_chain(configuration.recipe)
        work = sum(tuning_work(key) for stage, key in chain if stage == "tune")
        expensive = [(stage, key) for stage, key in chain if stage in _EXPENSIVE]
        return (work, len(expensive), *(place(entry) for entry in expensive))

    first = first_configurations(spaces)
    known = {entry.recipe for entry in first}
    ordered: list[Configuration] = []
    for index, space in enumerate(spaces):
        ordered += [entry for entry in first if entry.space == index]
        own = [
            (priority(entry), entry) for entry in configurations if entry.space == index and entry.recipe not in known
        ]
        own.sort(key=lambda pair: pair[0])
        firsts = _first_of_each([keys for keys, _ in own]) if space.prior is None else []
        ordered += [own[number][1] for number in firsts]
        ordered += [entry for number, (_, entry) in enumerate(own) if number not in firsts]
    return ordered


def _first_of_each(keys: Sequence[tuple[float, ...]]) -> list[int]:
    """Return where groups begin that share their expensive stages, of those that need the least tuning."""
    found: dict[tuple[float, ...], int] = {}
    for number, key in enumerate(keys):
        if key[0] == keys[0][0]:
            found.setdefault(key, number)
    return list(found.values())[:_FIRSTS]


def tuning_work(key: Any) -> float:
    """Return the work of the last step of a tune key, in units of a typical one."""
    step = key[1][-1]
    return float(getattr(step, "iterations", _TYPICAL_ITERATIONS / 10)) / _TYPICAL_ITERATIONS
