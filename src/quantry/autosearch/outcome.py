"""What came of running one trial, in a form that travels between processes and to disk."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from quantry.autosearch.trial import TrialState


@dataclass(frozen=True)
class TrialTask:
    """What a worker is to do.

    Attributes:
        number: The trial's number.
        recipe: The recipe as plain data.
        stop: Evaluate on so many samples, in the order of the race; None evaluates in full.
        first: Quantize and write the model; else it is there already.
        stand_ins: Contents of models that were evaluated, to their trials; a model with the same content is neither
            written nor evaluated again.
        judged: Contents of models of later trials, to what came of them; a model with the same content is written and
            has their score.
        claimed: The content that its model has, where the trial was put off for it and nobody else judges it now.
    """

    number: int
    recipe: Mapping[str, Any]
    stop: int | None = None
    first: bool = True
    stand_ins: Mapping[str, int] = field(default_factory=dict)
    judged: Mapping[str, "Outcome"] = field(default_factory=dict)
    claimed: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        number: The trial's number.
        state: How it ended.
        score: What the evaluator said.
        interval: Confidence interval of the score.
        samples: On how many samples.
        objectives: Other objectives by name.
        error: Why it failed.
        seconds: How long it took.
        computed: Stages that ran, with their seconds.
        reused: Stages whose results were known.
        content: Digest of what the quantized model is made of, without its metadata; None where it was not taken.
        same_as: The trial whose score this one shares; where it was known before, nothing was written or measured.
        died: Its process ended under it, which may not be its fault.
        deferred: Another worker judges a model with the same content, or has just done so, and nothing was written or
            measured. No such outcome leaves the `Desk`.
    """

    number: int
    state: TrialState
    score: float | None = None
    interval: tuple[float, float] | None = None
    samples: int | None = None
    objectives: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0
    computed: Mapping[str, float] = field(default_factory=dict)
    reused: tuple[str, ...] = ()
    content: str | None = None
    same_as: int | None = None
    died: bool = False
    deferred: bool = False

    def after(self, deferred: "Outcome") -> "Outcome":
        """Add the work of a run that was put off: what it computed was only read again in this one."""
        known = {*deferred.computed, *deferred.reused}
        computed = {stage: self.computed.get(stage, 0.0) + seconds for stage, seconds in deferred.computed.items()}
        return dataclasses.replace(
            self,
            seconds=deferred.seconds + self.seconds,
            computed={**self.computed, **computed},
            reused=(*deferred.reused, *(stage for stage in self.reused if stage not in known)),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for `from_plain`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_plain` returned, also after it went through JSON."""
        values = dict(plain)
        for name in ("interval", "reused"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        return cls(**values)
