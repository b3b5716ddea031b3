"""`Trial`: one configuration of a search, from the proposal to the final result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from quantry.autosearch.evaluator import Direction
from quantry.recipe import Recipe

TrialState = Literal["waiting", "running", "complete", "pruned", "failed"]
"""Proposed; on a worker; evaluated in full; stopped early by racing; ended with an error."""

NOT_NUMBERED = -1
"""The number of a configuration that has not been proposed yet."""

FLOAT_MODEL = -2
"""The number under which the float model is evaluated."""

_MAPPINGS = ("assignment", "objectives", "computed", "scores")
_RESULT = (
    *("state", "score", "interval", "samples", "objectives", "error", "error_type", "seconds", "computed", "reused"),
    *("content", "same_as", "worker_died", "scores"),
)
_NAME_SUFFIX = "-found-by-search"
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Trial:
    """One configuration of a search and what is known about it.

    A trial is proposed ("waiting"), scheduled ("running"), and ends as "complete", "pruned" or "failed". It is a value:
    each step makes a changed copy, so trials can be sent to workers and compared.

    Attributes:
        number: Index of the trial in the order of proposals, from 0.
        recipe: The configuration.
        assignment: Parameter names to values; what the recipe was built from.
        space: Name of its search space.
        space_index: Index of its search space in a `SpaceUnion`.
        state: See `TrialState`.
        score: The evaluator's score, an estimate if the trial was pruned; None if it failed.
        interval: 95 % confidence interval of the score; None if the evaluator has no per-sample scores.
        samples: Number of samples it was evaluated on; None if unknown.
        drop: How much worse than the float model, in the unit of the score; negative if better.
        accepted: Evaluated in full and within tolerance.
        objectives: Objective names to values, including accuracy.
        error: Why it failed.
        error_type: Name of the class of that error; empty if it did not fail.
        seconds: How long it took.
        computed: Stages that ran for it, with their seconds.
        reused: Stages whose results came from the store; with several tuning steps, tune may be in both.
        same_as: Number of the earlier trial with the same weights, scales and format, whose score this one shares.
        model_path: The model on disk; None if it was not kept.
        content: Digest of the quantized model without its metadata; None before quantization.
        worker_died: Its worker process died, which may not be the fault of the trial.
        scores: All scores by name, if the evaluator returns several.
    """

    number: int
    recipe: Recipe
    assignment: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    space: str = "space"
    space_index: int = 0
    state: TrialState = "waiting"
    score: float | None = None
    interval: tuple[float, float] | None = None
    samples: int | None = None
    drop: float | None = None
    accepted: bool = False
    objectives: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    error: str | None = None
    error_type: str = ""
    seconds: float = 0.0
    computed: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    reused: tuple[str, ...] = ()
    same_as: int | None = None
    model_path: Path | None = None
    content: str | None = None
    worker_died: bool = False
    scores: Mapping[str, float] = field(default_factory=lambda: _EMPTY)

    def __post_init__(self) -> None:
        for name in _MAPPINGS:
            value = getattr(self, name)
            # A large grid creates thousands of trials, and every step of a trial copies it: wrap only what is new.
            if not isinstance(value, MappingProxyType):
                object.__setattr__(self, name, MappingProxyType(dict(value)))
        object.__setattr__(self, "reused", tuple(self.reused))

    def __getstate__(self) -> dict[str, Any]:
        """Return plain dicts for pickle, which cannot write mapping proxies."""
        return {**vars(self), **{name: dict(getattr(self, name)) for name in _MAPPINGS}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, MappingProxyType(value) if name in _MAPPINGS else value)

    def __repr__(self) -> str:
        """Return a summary; the full recipe would fill a screen."""
        result = "" if self.score is None else f", score {self.score:.6g}"
        error = "" if self.error is None else f", error {self.error!r}"
        drop = "" if self.drop is None else f", drop {self.drop:.6g}"
        accepted = ", accepted" if self.accepted else ""
        return f"Trial({self.number}, {self.state}{result}{error}{drop}{accepted}, recipe {self.recipe.name!r})"

    @property
    def is_finished(self) -> bool:
        """Whether the trial has a result."""
        return self.state in ("complete", "pruned", "failed")

    def failed(self, error: str, **changes: Any) -> "Trial":
        """Return the trial as failed, without a score."""
        return replace(self, state="failed", error=error, score=None, interval=None, samples=None, **changes)

    def result(self) -> dict[str, Any]:
        """Return what running the trial produced, as plain data for `with_result`."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name in _RESULT
            for value in (getattr(self, name),)
        }

    def with_result(self, plain: Mapping[str, Any]) -> "Trial":
        """Return the trial with the result that `result` returned, possibly after a round trip through JSON."""
        values = dict(plain)
        if values.get("interval") is not None:
            values["interval"] = tuple(values["interval"])
        return replace(self, **values)

    def with_work_of(self, earlier: "Trial") -> "Trial":
        """Add the time and the stages of an earlier run of the same trial, whose results this run only reused."""
        known = {*earlier.computed, *earlier.reused}
        computed = {stage: self.computed.get(stage, 0.0) + seconds for stage, seconds in earlier.computed.items()}
        return replace(
            self,
            seconds=earlier.seconds + self.seconds,
            computed={**self.computed, **computed},
            reused=(*earlier.reused, *(stage for stage in self.reused if stage not in known)),
        )


def by_drop(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials sorted by their drop from the float model, smallest first; failed ones last."""
    return sorted(trials, key=lambda trial: (trial.drop is None, trial.drop or 0.0, trial.number))


def pareto_front(trials: Sequence[Trial], objectives: Sequence[str], direction: Direction) -> tuple[Trial, ...]:
    """Return the trials that no other trial dominates, best accuracy first.

    A trial dominates another if it is no worse in any objective and better in at least one. Of equal trials all stay.

    Args:
        trials: Trials with all objectives.
        objectives: Their names; ``direction`` applies to accuracy, everything else is minimized.
        direction: Whether accuracy is maximized or minimized.
    """
    sign = -1.0 if direction == "maximize" else 1.0
    points = [
        tuple(sign * trial.objectives[name] if name == "accuracy" else trial.objectives[name] for name in objectives)
        for trial in trials
    ]
    front = [
        (point, trial)
        for point, trial in zip(points, trials, strict=True)
        if not any(_dominates(other, point) for other in points)
    ]
    return tuple(trial for _, trial in sorted(front, key=lambda entry: (entry[0], entry[1].number)))


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(ours <= theirs for ours, theirs in zip(one, other, strict=True))


def found_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a trial as `quantize` must run it to write the same model.

    It has a name that tells it from the preset that the search started from.

    Example:
        >>> found_recipe(Recipe(name="XINT8")).name
        'XINT8-found-by-search'
    """
    name = recipe.name if recipe.name.endswith(_NAME_SUFFIX) else f"{recipe.name}{_NAME_SUFFIX}"
    return replace(recipe, name=name)
