"""A score that is no mean over samples but has an interval."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskScore:
    """What an evaluator says of a model.

    Attributes:
        value: The score.
        interval: 95 % confidence interval; None where it is not known.
        per_sample: Always None: the score is no mean over samples.
    """

    value: float
    interval: tuple[float, float] | None = None
    per_sample: None = None
