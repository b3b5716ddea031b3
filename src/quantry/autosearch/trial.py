"""One configuration that was tried."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from quantry.recipe import Recipe

TrialState = Literal["complete", "raced", "failed"]
"""Evaluated in full; stopped because it could not win; ended with an error."""


@dataclass(frozen=True)
class Trial:
    """What a search knows of one configuration.

    Attributes:
        number: The configuration's index among those that are tried, from 0.
        assignment: Names of parameters to values.
        recipe: The configuration itself.
        state: "complete", "raced" (stopped early: the score is an estimate) or "failed".
        score: What the evaluator said; None when it failed.
        interval: 95 % confidence interval of the score; None where the evaluator offers no samples.
        drop: How much worse than the float model, in the unit of the score; negative when better.
        accepted: Evaluated in full and within tolerance.
        objectives: Names of objectives to values, accuracy among them.
        error: Why it failed.
        seconds: How long it took.
        computed: Stages that ran for it, with their seconds.
        reused: Stages whose results were known; of several tuning steps some may be known and some not.
        samples: On how many samples it was evaluated; None where that is not known.
        same_as: Number of the earlier trial with the same weights, scales and format, whose score this one shares.
        model_path: The model on disk; None where it was not kept.
        space: Name of the space it is from.
    """

    number: int
    assignment: Mapping[str, Any]
    recipe: Recipe
    state: TrialState
    score: float | None = None
    interval: tuple[float, float] | None = None
    drop: float | None = None
    accepted: bool = False
    objectives: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0
    computed: Mapping[str, float] = field(default_factory=dict)
    reused: tuple[str, ...] = ()
    samples: int | None = None
    same_as: int | None = None
    model_path: Path | None = None
    space: str = "space"

    def __post_init__(self) -> None:
        for name in ("assignment", "objectives", "computed"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "reused", tuple(self.reused))

    def __repr__(self) -> str:
        """Return the result in short; a recipe in full would fill a screen."""
        score = f"error {self.error!r}" if self.score is None else f"score {self.score:.6g}"
        drop = "" if self.drop is None else f", drop {self.drop:.6g}"
        accepted = ", accepted" if self.accepted else ""
        return f"Trial({self.number}, {self.state}, {score}{drop}{accepted}, recipe {self.recipe.name!r})"
