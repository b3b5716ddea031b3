"""What is compared with what: the values that the files of rows/ are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

MEASURES = ("seconds", "cpu_seconds", "peak_bytes", "process_seconds")
"""Wall and CPU time of the job, peak resident memory of the process, wall time of the process with its imports."""


class Workload(Protocol):
    """A model and data for one or several sides.

    Implementations are frozen dataclasses. `make` may take long and keeps what it made for the next time; `discard`
    removes what is too large to keep.
    """

    def make(self) -> Mapping[str, Any]:
        """Return the arguments that describe the workload to a task, such as paths.

        Raises:
            NotAvailable: What it needs is not on this machine.
        """

    def discard(self) -> None:
        """Remove what should not stay on disk."""


@dataclass(frozen=True)
class Side:
    """One way to do a job.

    Attributes:
        label: Its name within the row.
        task: ``module:function``. The function gets the arguments, does what is not timed (imports, opening files) and
            returns the job, a function without arguments that returns facts.
        arguments: Keyword arguments of the task.
        workload: Adds its own arguments.
        peer: Run in the peer's environment.
        evaluate: A task that runs after each run of the side, with the same arguments, in the project's own environment
            and in a process of its own: what it takes counts nowhere. The facts it returns join those of the run; a
            text called ``note`` is shown next to the measurements.
    """

    label: str
    task: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    workload: Workload | None = None
    peer: bool = False
    evaluate: str | None = None


@dataclass(frozen=True)
class Goal:
    """What a comparison shall reach: ``numerator <= at_most * denominator + allowance``, or ``>=`` with ``at_least``.

    Attributes:
        measure: One of `MEASURES`.
        at_most: Upper bound of the ratio.
        at_least: Lower bound of the ratio.
        allowance: Added to the upper bound, in the measure's own unit.
    """

    measure: str
    at_most: float | None = None
    at_least: float | None = None
    allowance: float = 0.0

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise ValueError(f"Goal.measure must be one of {MEASURES}, got {self.measure!r}")
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("Goal needs either at_most or at_least")

    def reached(self, numerator: float, denominator: float) -> bool:
        """Return whether the two numbers keep to it."""
        if self.at_most is not None:
            return numerator <= self.at_most * denominator + self.allowance
        assert self.at_least is not None
        return numerator >= self.at_least * denominator

    def __str__(self) -> str:
        if self.at_least is not None:
            return f"{self.measure} >= {self.at_least:g}x"
        extra = f" + {self.allowance / 2**20:g} MB" if self.allowance else ""
        return f"{self.measure} <= {self.at_most:g}x{extra}"


@dataclass(frozen=True)
class QualityGoal:
    """What the denominator side must keep of a number that evaluations report: ``denominator >= numerator - loss``.

    Attributes:
        measure: Name of the number among the facts; larger is better.
        loss: By how much the denominator may be below the numerator, in the number's own unit.
    """

    measure: str
    loss: float

    def reached(self, numerator: float, denominator: float) -> bool:
        """Return whether the two numbers keep to it."""
        return denominator >= numerator - self.loss

    def __str__(self) -> str:
        return f"{self.measure} at most {self.loss:g} below"


@dataclass(frozen=True)
class Comparison:
    """A ratio to report: numerator divided by denominator.

    Attributes:
        numerator: Label of a side.
        denominator: Label of a side.
        goals: What the ratio, or the quality next to it, should reach.
        larger_is_better: True where the peer is above and quantry below the line.
    """

    numerator: str
    denominator: str
    goals: tuple[Goal | QualityGoal, ...] = ()
    larger_is_better: bool = True


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: Short, unique, with slashes from the general to the particular.
        title: What is measured, for people.
        sides: Run one after the other, again and again.
        comparisons: Ratios to tell.
        repetitions: How often each side runs in a full run.
        quick: Also part of the quick run and of the regression guard.
        timeout: Seconds after which a side is given up.
        patience: A side whose runs took more seconds than this together is not run again.
    """

    name: str
    title: str
    sides: tuple[Side, ...]
    comparisons: tuple[Comparison, ...]
    repetitions: int = 3
    quick: bool = False
    timeout: float = 1200.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        labels = [side.label for side in self.sides]
        if len(set(labels)) != len(labels):
            raise ValueError(f"labels of sides must differ, got {labels}; row {self.name}")
        for comparison in self.comparisons:
            for label in (comparison.numerator, comparison.denominator):
                if label not in labels:
                    raise ValueError(f"a comparison must name a side, got {label!r}; row {self.name} has {labels}")
