"""Trials that no other betters in everything."""

from collections.abc import Sequence

from quantry.autosearch.evaluator import Direction
from quantry.autosearch.trial import Trial


def pareto_front(trials: Sequence[Trial], objectives: Sequence[str], direction: Direction) -> tuple[Trial, ...]:
    """Return the trials that none of the others dominates, best accuracy first.

    A trial dominates another when it is no worse in any objective and better in one. Of equal trials all stay.

    Args:
        trials: Trials with all objectives.
        objectives: Their names; accuracy is better the way ``direction`` says, everything else when it is less.
        direction: Which way accuracy is better.
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
