"""Trials as lines of text."""

from collections.abc import Sequence

from quantry.autosearch.ledger import Ledger
from quantry.autosearch.trial import Trial
from quantry.recipe import brief

_STATES = {"complete": "", "raced": "~", "failed": "failed"}


def score_text(score: float, interval: tuple[float, float] | None) -> str:
    """Return a score with its confidence interval, such as ``0.7512 [0.741, 0.762]``."""
    return f"{score:.6g}" if interval is None else f"{score:.6g} [{interval[0]:.6g}, {interval[1]:.6g}]"


def assignment_text(trial: Trial) -> str:
    """Return the values of a trial's parameters."""
    return ", ".join(f"{name}={brief(value)}" for name, value in trial.assignment.items()) or "(no parameter)"


def by_difference(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials, nearest to the float model first; those without a score last."""
    return sorted(trials, key=lambda trial: (trial.drop is None, trial.drop or 0.0, trial.number))


def columns(objectives: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of a table of trials."""
    return ("trial", "drop", "score", *objectives[1:], "accepted", "seconds", "computed", "reused")


def row(trial: Trial, objectives: Sequence[str]) -> tuple[str, ...]:
    """Return a trial as one line of the table; an estimated score has a ``~`` before it."""
    mark = _STATES[trial.state]
    score = mark if trial.score is None else f"{mark}{score_text(trial.score, trial.interval)}"
    shared = "" if trial.same_as is None else f" = trial {trial.same_as}"
    return (
        str(trial.number),
        "" if trial.drop is None else f"{trial.drop:.6g}",
        score,
        *(f"{trial.objectives[name]:.4g}" if name in trial.objectives else "" for name in objectives[1:]),
        "yes" if trial.accepted else "",
        f"{trial.seconds:.2f}",
        (" ".join(trial.computed) or "-") + shared,
        " ".join(trial.reused) or "-",
    )


def trial_table(trials: Sequence[Trial], objectives: Sequence[str]) -> list[str]:
    """Return the trials as aligned lines, nearest to the float model first."""
    rows = [columns(objectives), *(row(trial, objectives) for trial in by_difference(trials))]
    widths = [max(len(line[index]) for line in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in rows]


def how_far(ledger: Ledger) -> tuple[str, ...]:
    """Return what to say where nothing was accepted."""
    best = ledger.best
    if best is None:
        failed = sum(trial.state == "failed" for trial in ledger.trials)
        return (f"no trial could be evaluated: {failed} of {len(ledger.trials)} failed",)
    if ledger.candidates:
        return ()
    away = f"the best, trial {best.number}, is {best.drop:g} worse than the float model"
    return (f"nothing is within the tolerance of {ledger.tolerance:g}: {away}",)
