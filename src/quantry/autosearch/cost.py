"""Estimates how long a trial will take, from the stages its recipe shares with earlier trials."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from quantry.autosearch.trial import Trial
from quantry.recipe import EqualizeOptions, Recipe

StageKey = tuple[str, Any]
"""A stage and a key that is equal for two recipes if they share the stage's result."""

# Seconds of each stage relative to the others, measured on a small convolutional network; used until a stage has run.
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
_TYPICAL_ITERATIONS = 1000

# Trials that the assumption counts for that every stage runs whose options are new.
_CERTAIN = 0.5


def stage_chain(recipe: Recipe) -> tuple[StageKey, ...]:
    """Return the stages a recipe needs, in order."""
    prepared: Any = dataclasses.replace(recipe.prepare, npu=None)
    chain: list[StageKey] = [("prepare", prepared)]
    if recipe.prepare.npu is not None:
        # Nodes that stay float are not converted, so the selection is part of the key.
        prepared = (prepared, recipe.prepare.npu, recipe.plan.selection, recipe.plan.layers)
        chain.append(("convert", prepared))
    if recipe.equalize != EqualizeOptions():
        prepared = (prepared, recipe.equalize)
        chain.append(("equalize", prepared))
    observed = (prepared, recipe.observe)
    chain += [("plan", (prepared, recipe.plan)), ("observe", observed)]
    planned: Any = recipe.plan
    if recipe.mix != type(recipe.mix)():
        planned = (recipe.plan, recipe.mix)
        chain.append(("mix", (observed, planned)))
    scaled = (observed, planned, recipe.scale)
    chain.append(("scale", scaled))
    steps = recipe.tune.steps
    chain += [("tune", (scaled, steps[: count + 1])) for count in range(len(steps))]
    return (*chain, ("emit", recipe), ("evaluate", recipe))


def tuning_work(key: Any) -> float:
    """Return the work of the last step in the key of a tune stage, relative to a step of 1000 iterations."""
    step = key[1][-1]
    # Steps without iterations (GPTQ, bias correction) take about as long as 100 iterations of the others.
    return float(getattr(step, "iterations", _TYPICAL_ITERATIONS / 10)) / _TYPICAL_ITERATIONS


def _shareable_work(recipe: Recipe) -> tuple[StageKey, ...]:
    # Whether equalization changes anything is not known in advance. If it does not, ranges are shared across it.
    ranges = (recipe.observe, recipe.plan.activation, recipe.scale.activation)
    return (*stage_chain(recipe), ("ranges", ranges))


class CostModel:
    """Estimates the seconds of a trial from a prior and from the times of the trials so far."""

    def __init__(self) -> None:
        self._done: set[StageKey] = set()
        self._seconds: dict[str, list[float]] = {}
        # Equalizations that did not change the model: their trials repeat those without.
        self._inert: set[EqualizeOptions] = set()
        # How often each stage was expected to run, and ran: an equalization that changes nothing spares all later ones.
        self._expected: Counter[str] = Counter()
        self._ran: Counter[str] = Counter()

    def estimate(self, recipe: Recipe) -> float:
        """Return the expected seconds of a trial, counting only stages that no trial has run yet."""
        return sum(
            self.typical(stage) * self._rate(stage) * (tuning_work(key) if stage == "tune" else 1.0)
            for stage, key in stage_chain(self._effective(recipe))
            if (stage, key) not in self._done
        )

    def estimate_all(self, recipes: Iterable[Recipe]) -> float:
        """Return the expected seconds of several trials in sequence; stages they share count once."""
        done = set(self._done)
        total = 0.0
        for recipe in recipes:
            total += self.estimate(recipe)
            self._done |= set(stage_chain(self._effective(recipe)))
        self._done = done
        return total

    def unfinished(self, recipe: Recipe) -> set[StageKey]:
        """Return the work a trial needs that no recorded trial has done: stages, and ranges of activations.

        Ranges are listed separately because they take most of the time of the scale stage, and each worker caches
        them in memory.
        """
        return set(_shareable_work(recipe)) - self._done

    def learn(self, trial: Trial, same: Trial | None = None) -> None:
        """Add the times of a finished trial.

        Args:
            trial: The trial.
            same: The earlier trial with the same model, if there is one.
        """
        if same is not None and same.recipe == dataclasses.replace(trial.recipe, equalize=same.recipe.equalize):
            self._inert |= {trial.recipe.equalize, same.recipe.equalize}
        chain = stage_chain(trial.recipe)
        if trial.state != "failed":
            ran = {*trial.computed, *(("evaluate",) if trial.same_as is None else ())}
            new = {stage for stage, key in chain if (stage, key) not in self._done}
            self._expected.update(new)
            self._ran.update(new & ran)
        self._done |= {*_shareable_work(trial.recipe), *stage_chain(self._effective(trial.recipe))}
        if trial.state == "failed" or trial.same_as is not None:
            return
        work = sum(tuning_work(key) for stage, key in chain if stage == "tune") or 1.0
        for stage, seconds in trial.computed.items():
            self._seconds.setdefault(stage, []).append(seconds / work if stage == "tune" else seconds)
        # Whatever is not spent in a stage is evaluation.
        self._seconds.setdefault("evaluate", []).append(max(trial.seconds - sum(trial.computed.values()), 0.0))

    def typical(self, stage: str) -> float:
        """Return the mean seconds of a stage; if it has not run yet, the prior scaled to the speed of the others."""
        taken = self._seconds.get(stage)
        return sum(taken) / len(taken) if taken else _PRIOR_SECONDS[stage] * self._slowdown()

    def _effective(self, recipe: Recipe) -> Recipe:
        """Return the recipe without an equalization that is known not to change the model."""
        inert = recipe.equalize in self._inert
        return dataclasses.replace(recipe, equalize=EqualizeOptions()) if inert else recipe

    def _rate(self, stage: str) -> float:
        """Return how often a stage runs that no trial with the same options has run; at first, always."""
        return (self._ran[stage] + _CERTAIN) / (self._expected[stage] + _CERTAIN)

    def _slowdown(self) -> float:
        """Return how many times slower than the prior the stages were that have run."""
        known = [
            (sum(taken) / len(taken), _PRIOR_SECONDS[name])
            for name, taken in self._seconds.items()
            if name in _PRIOR_SECONDS
        ]
        return sum(taken for taken, _ in known) / sum(prior for _, prior in known) if known else 1.0
