"""What a search reports while it runs: auto_search.log, log records and a table in the terminal."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from quantry.autosearch.differences import difference_text
from quantry.autosearch.live_table import scored, time_text
from quantry.autosearch.output_directory import disk_errors
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial, by_drop
from quantry.autosearch.trial_row import aligned, cells, trial_texts
from quantry.files import open_regular
from quantry.recipe import brief

LOGGER = "quantry.autosearch"
"""Name of the logger; records have the level INFO, which is not shown by default."""


class SearchCallback(Protocol):
    """Is called when something happens in a search."""

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """The search starts or resumes.

        Args:
            state: The state of the search.
            lines: Description of the search.
        """
        ...

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """A trial was recorded."""
        ...

    def on_message(self, state: SearchState, line: str) -> None:
        """There is progress to report between two recorded trials."""
        ...

    def on_end(self, state: SearchState, reason: str) -> None:
        """The search ended.

        Args:
            state: The state of the search.
            reason: Why.
        """
        ...


def score_text(score: float, interval: tuple[float, float] | None) -> str:
    """Return a score with its confidence interval, such as ``0.7512 [0.741, 0.762]``."""
    return f"{score:.6g}" if interval is None else f"{score:.6g} [{interval[0]:.6g}, {interval[1]:.6g}]"


def _trial_table(trials: Sequence[Trial], objectives: Sequence[str]) -> list[str]:
    """Return the trials as aligned lines of text, smallest drop first."""
    columns = ("trial", "drop", "score", "95 %", *objectives[1:], "accepted", "seconds", "computed", "reused")
    return aligned([columns, *(cells(trial_texts(trial), columns) for trial in by_drop(trials))])


def shortfall(state: SearchState) -> tuple[str, ...]:
    """Return a note if no trial was accepted."""
    best = state.best
    if best is None:
        failed = sum(trial.state == "failed" for trial in state.trials)
        return (f"no trial could be evaluated: {failed} of {len(state.trials)} failed",)
    if state.candidates:
        return ()
    away = f"the best, trial {best.number}, is {best.drop:g} worse than the float model"
    return (f"nothing is within the tolerance of {state.tolerance:g}: {away}",)


class LogFile:
    """Appends to the log; every line is written at once, so that the log can be followed while the search runs.

    Format: UTF-8, one record per line except for the final table::

        2026-11-15 07:12:39 [INFO] search starts: ...
        2026-11-15 07:12:41 [INFO] trial 0: complete, score 0.7512 [0.741, 0.762], drop 0.0021, accepted; 1.93 s
        2026-11-15 07:12:41 [INFO]   configuration: scale.activation=Percentile(percentile=99.99, symmetric=True)
        2026-11-15 07:12:41 [INFO]   computed observe 1.20 s, scale 0.11 s, emit 0.05 s; reused prepare, plan
        2026-11-15 07:12:41 [INFO]   best so far

    Args:
        path: The file; created if missing, otherwise continued.

    Raises:
        StoreError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """Write the description of the search."""
        self._write([state.headline, *lines])

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Write the result of a trial, unless it was written before an interruption."""
        if trial.number in state.restored:
            return
        if len(state.trials) == 1 and state.reference is not None:
            self._write([f"float model: score {score_text(state.reference.value, state.reference.interval)}"])
        configuration = ", ".join(f"{name}={brief(value)}" for name, value in trial.assignment.items())
        lines = [f"trial {trial.number}: {_result_text(trial)}; {trial.seconds:.2f} s"]
        lines.append(f"  configuration: {configuration or '(no parameter)'}")
        lines.append(f"  {_stages_text(trial)}")
        if trial.error is not None:
            lines.append(f"  error: {trial.error}")
        if state.best is not None and state.best.number == trial.number:
            lines.append("  best so far")
        self._write(lines, "WARNING" if trial.error is not None else "INFO")

    def on_message(self, state: SearchState, line: str) -> None:  # noqa: ARG002 - the line is enough
        """Write the line."""
        self._write([line])

    def on_end(self, state: SearchState, reason: str) -> None:
        """Write the table of all trials and the candidates."""
        self._write([f"search ends after {len(state.trials)} trials and {state.seconds:.1f} s: {reason}"])
        table = _trial_table(state.trials, state.options.objectives)
        best = [] if state.best is None else [f"best: trial {state.best.number}, {state.directory.best_model}"]
        lines = [*table, *_candidates_text(state), *shortfall(state), *best, *state.reasons]
        self._write(["trials, smallest drop first:", *lines])

    def _write(self, lines: list[str], level: str = "INFO") -> None:
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        text = "".join(f"{now} [{level}] {line}\n" for block in lines for line in block.splitlines() or [""])
        with disk_errors(self.path), open_regular(self.path, "ab") as file:
            file.write(text.encode())


def _result_text(trial: Trial) -> str:
    if trial.score is None or trial.drop is None:
        return trial.state
    accepted = "accepted" if trial.accepted else "not accepted"
    others = "".join(f", {name} {value:g}" for name, value in trial.objectives.items() if name != "accuracy")
    return f"{trial.state}, score {score_text(trial.score, trial.interval)}{others}, drop {trial.drop:g}, {accepted}"


def _stages_text(trial: Trial) -> str:
    computed = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in trial.computed.items()) or "nothing"
    shared = "" if trial.same_as is None else f"; same model and score as trial {trial.same_as}"
    return f"computed {computed}; reused {', '.join(trial.reused) or 'nothing'}{shared}"


def _candidates_text(state: SearchState) -> list[str]:
    if state.tolerance is None:
        return [f"no tolerance was given: all {len(state.candidates)} complete trials are accepted"]
    lines = [
        f"  trial {trial.number}: drop {trial.drop:g}, {trial.model_path or 'model not kept'}"
        for trial in state.candidates
    ]
    return [f"candidates within the tolerance of {state.tolerance:g}: {len(lines)}", *lines]


class ProgressLog:
    """Logs one short line per finished trial and one at the end, to the logger `LOGGER`."""

    def __init__(self) -> None:
        self._log = logging.getLogger(LOGGER)
        self._best: Mapping[str, Any] | None = None

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """Log where the full log is."""
        self._log.info("%s: %s; more in %s", state.headline, "".join(lines[:1]), state.options.log_file)
        for space in state.study.spaces:
            for note in space.notes:
                self._log.info("%s", note)

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Log the result of a trial, unless it finished before an interruption."""
        is_best = state.best is not None and state.best.number == trial.number
        different, before = difference_text(trial.assignment, self._best), self._best
        self._best = trial.assignment if is_best else before
        if trial.number in state.restored or not self._log.isEnabledFor(logging.INFO):
            return
        best = ", best so far" if is_best else ""
        result = f"failed: {trial.error}"
        if trial.score is not None:
            result = f"score {scored(trial)}, drop {trial.drop:.5g}{best}"
        self._log.info("trial %d: %s; %s; %s", trial.number, result, different, time_text(state))

    def on_message(self, state: SearchState, line: str) -> None:  # noqa: ARG002 - the line is enough
        """Log the line."""
        self._log.info("%s", line)

    def on_end(self, state: SearchState, reason: str) -> None:
        """Log why the search ended."""
        self._log.info("search ends after %d trials: %s", len(state.trials), reason)
