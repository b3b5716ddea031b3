"""auto_search.log: what happened, for people."""

from datetime import datetime
from pathlib import Path

from quantry.autosearch.ledger import Ledger
from quantry.autosearch.output_directory import disk_errors
from quantry.autosearch.table import assignment_text, how_far, score_text, trial_table
from quantry.autosearch.trial import Trial


class LogFile:
    """Appends lines to the log, each at once on disk: it can be followed while the search runs.

    Format, UTF-8, one record for each line but for the final table::

        2026-11-15 07:12:39 [INFO] search begins: ...
        2026-11-15 07:12:41 [INFO] trial 0: complete, score 0.7512 [0.741, 0.762], drop 0.0021, accepted; 1.93 s
        2026-11-15 07:12:41 [INFO]   configuration: scale.activation=Percentile(percentile=99.99, symmetric=True)
        2026-11-15 07:12:41 [INFO]   computed observe 1.20 s, scale 0.11 s, emit 0.05 s; reused prepare, plan
        2026-11-15 07:12:41 [INFO]   best so far

    Args:
        path: The file; made when missing, else continued.

    Raises:
        StoreError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    def opened(self, ledger: Ledger, lines: list[str]) -> None:
        """Write what the search is about."""
        self._write([ledger.opening, *lines])

    def settled(self, ledger: Ledger, trial: Trial) -> None:
        """Write what came of a trial, unless that was written before an interruption."""
        if trial.number in ledger.restored:
            return
        if len(ledger.trials) == 1 and ledger.reference is not None:
            self._write([f"float model: score {score_text(ledger.reference.value, ledger.reference.interval)}"])
        lines = [f"trial {trial.number}: {_verdict(trial)}; {trial.seconds:.2f} s"]
        lines.append(f"  configuration: {assignment_text(trial)}")
        lines.append(f"  {_stages(trial)}")
        if trial.error is not None:
            lines.append(f"  error: {trial.error}")
        if ledger.best is not None and ledger.best.number == trial.number:
            lines.append("  best so far")
        self._write(lines, "WARNING" if trial.error is not None else "INFO")

    def told(self, ledger: Ledger, line: str) -> None:  # noqa: ARG002 - the line is enough
        """Write what goes on."""
        self._write([line])

    def closed(self, ledger: Ledger, reason: str) -> None:
        """Write the final table and the candidates."""
        self._write([f"search ends after {len(ledger.trials)} trials and {ledger.seconds:.1f} s: {reason}"])
        table = trial_table(ledger.trials, ledger.options.objectives)
        best = [] if ledger.best is None else [f"best: trial {ledger.best.number}, {ledger.directory.best_model}"]
        self._write(
            [
                "trials, nearest to the float model first:",
                *table,
                *_candidates(ledger),
                *how_far(ledger),
                *best,
            ]
        )

    def _write(self, lines: list[str], level: str = "INFO") -> None:
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        text = "".join(f"{now} [{level}] {line}\n" for block in lines for line in block.splitlines() or [""])
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(text)


def _verdict(trial: Trial) -> str:
    if trial.score is None or trial.drop is None:
        return trial.state
    accepted = "accepted" if trial.accepted else "not accepted"
    others = "".join(f", {name} {value:g}" for name, value in trial.objectives.items() if name != "accuracy")
    return f"{trial.state}, score {score_text(trial.score, trial.interval)}{others}, drop {trial.drop:g}, {accepted}"


def _candidates(ledger: Ledger) -> list[str]:
    if ledger.tolerance is None:
        return [f"no tolerance was given: all {len(ledger.candidates)} trials that were evaluated in full are accepted"]
    lines = [
        f"  trial {trial.number}: difference {trial.drop:g}, {trial.model_path or 'model not kept'}"
        for trial in ledger.candidates
    ]
    return [f"candidates within the tolerance of {ledger.tolerance:g}: {len(lines)}", *lines]


def _stages(trial: Trial) -> str:
    computed = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in trial.computed.items()) or "nothing"
    shared = "" if trial.same_as is None else f"; score shared with trial {trial.same_as}, which computes the same"
    return f"computed {computed}; reused {', '.join(trial.reused) or 'nothing'}{shared}"
