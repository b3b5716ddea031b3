"""Runs the sides of a row in turns and computes its ratios."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Protocol

from benchmarks.harness.measure import Failure, Measurement, measure
from benchmarks.harness.ratios import noise, ratio
from benchmarks.harness.row import MEASURES, Comparison, Goal, QualityGoal, Row, Side
from benchmarks.locations import NotAvailable

RowResult = dict[str, Any]
"""A row's outcome as plain data, as it is stored."""

Tell = Callable[[str], None]


class Measure(Protocol):
    """The face of `measure`."""

    def __call__(self, task: str, arguments: Mapping[str, Any], *, peer: bool, timeout: float) -> Measurement:
        """Run a task in a fresh process."""


@dataclass
class Repetitions:
    """What has been measured of one side so far, or why it cannot be."""

    runs: list[Measurement]
    arguments: Mapping[str, Any]
    failure: str | None = None
    skipped: str | None = None

    @property
    def alive(self) -> bool:
        """Whether it is worth running again."""
        return self.failure is None and self.skipped is None

    def values(self, measure_name: str) -> list[float]:
        """Return one measure of all runs, or a number that the evaluation reported."""
        if measure_name in MEASURES:
            return [getattr(run, measure_name) for run in self.runs]
        return [run.facts[measure_name] for run in self.runs if measure_name in run.facts]


def run_row(row: Row, repetitions: int, tell: Tell = lambda _: None, run: Measure = measure) -> RowResult:
    """Run every side in turns (A B A B ...) and return the row's result; slow sides run less often.

    Args:
        row: What to run.
        repetitions: How often each side runs.
        tell: Gets a line of text about each run.
        run: Runs one side.
    """
    sides = {side.label: _prepare(side) for side in row.sides}
    load = os.getloadavg()[0]
    try:
        for turn in range(repetitions):
            for side in row.sides:
                if sum(sides[side.label].values("process_seconds")) <= row.patience:
                    _take(side, sides[side.label], row.timeout, run)
                    tell(f"{row.name} {turn + 1}/{repetitions} {side.label}: {_last(sides[side.label])}")
    finally:
        for side in row.sides:
            if side.workload is not None:
                side.workload.discard()
    return {
        "name": row.name,
        "title": row.title,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": round(load, 2),
        "sides": {label: _plain(taken) for label, taken in sides.items()},
        "comparisons": [_compare(comparison, sides) for comparison in row.comparisons],
    }


def _prepare(side: Side) -> Repetitions:
    try:
        made = side.workload.make() if side.workload is not None else {}
    except NotAvailable as reason:
        return Repetitions([], {}, skipped=str(reason))
    except Failure as reason:
        return Repetitions([], {}, failure=f"preparation: {reason}")
    return Repetitions([], {**made, **side.arguments})


def _take(side: Side, taken: Repetitions, timeout: float, run: Measure) -> None:
    if not taken.alive:
        return
    try:
        taken.runs.append(run(side.task, taken.arguments, peer=side.peer, timeout=timeout))
        if side.evaluate is not None:
            evaluated = run(side.evaluate, taken.arguments, peer=False, timeout=timeout).facts
            taken.runs[-1] = replace(taken.runs[-1], facts={**taken.runs[-1].facts, **evaluated})
    except NotAvailable as reason:
        taken.skipped = str(reason)
    except Failure as reason:
        taken.failure = str(reason)


def _last(taken: Repetitions) -> str:
    if taken.skipped:
        return f"skipped: {taken.skipped}"
    if taken.failure:
        return f"failed: {taken.failure}"
    run = taken.runs[-1]
    note = f", {run.facts['note']}" if "note" in run.facts else ""
    return f"{run.seconds:.3f} s, CPU {run.cpu_seconds:.3f} s, peak {run.peak_bytes / 2**20:.0f} MB{note}"


def _plain(taken: Repetitions) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if taken.failure:
        plain["failure"] = taken.failure
    if taken.skipped:
        plain["skipped"] = taken.skipped
    if taken.runs:
        plain |= {name: [round(value, 4) for value in taken.values(name)] for name in MEASURES}
        plain["facts"] = dict(taken.runs[-1].facts)
    return plain


def _compare(comparison: Comparison, sides: Mapping[str, Repetitions]) -> dict[str, Any]:
    above, below = sides[comparison.numerator], sides[comparison.denominator]
    ratios: dict[str, Any] = {}
    for name in MEASURES:
        found = ratio(above.values(name), below.values(name))
        if found is not None:
            noises = [n for n in (noise(above.values(name)), noise(below.values(name))) if n is not None]
            ratios[name] = {**asdict(found), "noise": max(noises, default=None)}
    goals = [_check_goal(goal, above, below) for goal in comparison.goals if above.runs and below.runs]
    return {
        "numerator": comparison.numerator,
        "denominator": comparison.denominator,
        "larger_is_better": comparison.larger_is_better,
        "ratios": ratios,
        "goals": goals,
    }


def _check_goal(goal: Goal | QualityGoal, above: Repetitions, below: Repetitions) -> dict[str, Any]:
    ours, theirs = below.values(goal.measure), above.values(goal.measure)
    # A side that ran but could not be evaluated has not shown that it reaches the goal.
    told: dict[str, Any] = {"goal": str(goal), "reached": bool(ours and theirs)}
    if told["reached"]:
        told["reached"] = goal.reached(median(theirs), median(ours))
    if isinstance(goal, QualityGoal):
        told["measured"] = f"{_number(theirs)} and {_number(ours)}"
    return told


def _number(values: list[float]) -> str:
    return f"{median(values):.2f}" if values else "nothing"
