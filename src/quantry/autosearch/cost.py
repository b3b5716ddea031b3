"""Estimates how long a trial will take, from the stages its recipe shares with earlier trials."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from quantry.autosearch.trial import Trial
from quantry.recipe import EqualizeOptions, Recipe
from quantry.stages import WORK, WORK_OF, StageKey, planned_work

# Seconds of work of the same kind that depends on more than its stage, in the units of `quantry.stages.WORK`.
_PRIOR_SECONDS = {
    **{work.name: work.seconds for work in WORK},
    # Steps without iterations, and 1000 iterations of the others.
    "tune BiasCorrection": 6.0,
    "tune Gptq": 10.0,
    "tune AdaRound": 18.0,
    "tune AdaQuant": 16.0,
    # No kernel computes with these formats: every operator is followed by a function that rounds.
    "evaluate block": 12.0,
}
_TYPICAL_ITERATIONS = 1000

# Seconds of work that took no measurable time; its share of a sum is never divided by zero.
_SHORTEST = 1e-9

# How often other options of a stage change the model, before trials show it, and how many trials that counts for.
# Equalization finds nothing to do in many models, and conversions for NPUs nothing to convert.
_CHANGES, _CHANGES_TRIALS = {"equalize": 0.6, "convert": 0.7}, 2.0


def kind_of_work(stage: str, key: Any) -> str:
    """Return what the time of a stage depends on: its name, the tuning algorithm, whether a format is simulated."""
    if stage == "tune":
        return f"tune {type(key[1][-1]).__name__}"
    if stage == "evaluate":
        block = key.plan.activation.dtype.is_block or key.plan.weight.dtype.is_block
        return "evaluate block" if block else f"evaluate {key.plan.activation.dtype.value}"
    return stage


def amount_of_work(stage: str, key: Any) -> float:
    """Return the work of a stage relative to others of its kind: training takes longer the more iterations it has."""
    if stage != "tune":
        return 1.0
    return float(getattr(key[1][-1], "iterations", _TYPICAL_ITERATIONS)) / _TYPICAL_ITERATIONS


def prior_cost(stage: str, key: Any) -> float:
    """Return the expected cost of a stage before anything has run, in units that only compare with each other."""
    return _prior(kind_of_work(stage, key)) * amount_of_work(stage, key)


def _shareable_work(recipe: Recipe) -> tuple[StageKey, ...]:
    # Whether equalization changes anything is not known in advance. If it does not, ranges are shared across it.
    ranges = (recipe.observe, recipe.plan.activation, recipe.scale.activation)
    return (*planned_work(recipe), ("ranges", ranges))


class CostModel:
    """Estimates the seconds of a trial from a prior and from the times of the trials so far."""

    def __init__(self) -> None:
        self._done: set[StageKey] = set()
        # Measured seconds of each kind of work, by stage and kind, for an amount of 1.
        self._seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        # Equalizations that did not change the model: their trials repeat those without.
        self._inert: set[EqualizeOptions] = set()
        # By the first stage with new options: how many trials there were, and how many got another model by them.
        self._tried: Counter[str] = Counter()
        self._changed: Counter[str] = Counter()

    def estimate(self, recipe: Recipe) -> float:
        """Return the expected seconds of a trial, counting only stages that no trial has run yet."""
        chain = planned_work(self._effective(recipe))
        new = [(stage, key) for stage, key in chain if (stage, key) not in self._done]
        if not new:
            return 0.0
        first, *others = (
            self.typical(stage, kind_of_work(stage, key)) * amount_of_work(stage, key) for stage, key in new
        )
        # If the first new stage changes nothing, the others are known too.
        return first + sum(others) * self._rate(new[0][0])

    def estimates(self, recipes: Iterable[Recipe]) -> list[float]:
        """Return the expected seconds of each of several trials in sequence; stages they share count once."""
        done = set(self._done)
        found = []
        for recipe in recipes:
            found.append(self.estimate(recipe))
            self._done |= set(planned_work(self._effective(recipe)))
        self._done = done
        return found

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
        chain = planned_work(trial.recipe)
        new = [(stage, key) for stage, key in chain if (stage, key) not in self._done]
        if trial.state != "failed" and new:
            self._tried[new[0][0]] += 1
            self._changed[new[0][0]] += trial.same_as is None
        self._done |= {*_shareable_work(trial.recipe), *planned_work(self._effective(trial.recipe))}
        if trial.state != "failed" and trial.same_as is None:
            self._learn_seconds(trial, new or list(chain))

    def _learn_seconds(self, trial: Trial, ran: list[StageKey]) -> None:
        """Add the seconds of a trial's stages to those of the same kind of work."""
        spent: dict[str, float] = defaultdict(float)
        for stage, seconds in trial.computed.items():
            spent[WORK_OF.get(stage, stage)] += seconds
        # Whatever is not spent in a stage is evaluation.
        spent["evaluate"] += max(trial.seconds - sum(trial.computed.values()), 0.0)
        for stage, seconds in spent.items():
            works = [(kind_of_work(stage, key), amount_of_work(stage, key)) for name, key in ran if name == stage]
            # Only the sum of several steps of tuning is known; it is divided as they are estimated so far.
            known = {kind: max(self.typical(stage, kind), _SHORTEST) for kind, _ in works}
            expected = sum(known[kind] * amount for kind, amount in works)
            for kind, _ in works:
                self._seconds[stage][kind].append(known[kind] * seconds / expected)

    def typical(self, stage: str, kind: str) -> float:
        """Return the usual seconds of a kind of work for an amount of 1.

        Work that has not run yet gets its prior, scaled to the speed of the same stage with other options, or of all.
        """
        known = self._seconds.get(stage, {})
        if kind in known:
            return _usual(known[kind])
        measured = known or {name: times for kinds in self._seconds.values() for name, times in kinds.items()}
        prior = sum(_prior(name) for name in measured)
        slowdown = sum(_usual(times) for times in measured.values()) / prior if prior else 1.0
        return _prior(kind) * slowdown

    def _effective(self, recipe: Recipe) -> Recipe:
        """Return the recipe without an equalization that is known not to change the model."""
        inert = recipe.equalize in self._inert
        return dataclasses.replace(recipe, equalize=EqualizeOptions()) if inert else recipe

    def _rate(self, stage: str) -> float:
        """Return how often new options of a stage change the model."""
        assumed = _CHANGES.get(stage, 1.0) * _CHANGES_TRIALS
        return (self._changed[stage] + assumed) / (self._tried[stage] + _CHANGES_TRIALS)


def _usual(times: list[float]) -> float:
    """Return the mean without the first time, which also has what is done once: imports, caches, shared results."""
    return fmean(times[1:] or times)


def _prior(kind: str) -> float:
    return _PRIOR_SECONDS.get(kind) or _PRIOR_SECONDS[kind.split(maxsplit=1)[0]]
