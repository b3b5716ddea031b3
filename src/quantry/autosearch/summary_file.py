"""search.json: what happened, for programs."""

import json
import math
import time
from typing import Any

from quantry.autosearch.ledger import Ledger
from quantry.autosearch.trial import Trial
from quantry.recipe import to_plain

VERSION = 1
_SECONDS_BETWEEN, _SHARE = 2.0, 20


class SummaryFile:
    """Writes search.json, whole and in one step, after trials and at the end.

    In a fast search of many trials it is written every two seconds, and seldom enough to take no more than a twentieth
    of the time.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._due = -math.inf
        self._texts: dict[int, tuple[Trial, str]] = {}

    def opened(self, ledger: Ledger, lines: list[str]) -> None:
        """Remember what the search is about."""
        self._lines = lines
        self._write(ledger, None)

    def settled(self, ledger: Ledger, trial: Trial) -> None:
        """Write what is known."""
        is_best = ledger.best is not None and ledger.best.number == trial.number
        if is_best or time.monotonic() >= self._due:
            self._write(ledger, None)

    def told(self, ledger: Ledger, line: str) -> None:
        """Leave it to the log."""

    def closed(self, ledger: Ledger, reason: str) -> None:
        """Write everything."""
        self._write(ledger, reason)

    def _write(self, ledger: Ledger, reason: str | None) -> None:
        started = time.monotonic()
        opening = json.dumps(_speakable(_overview(ledger, self._lines, reason)), indent=1)
        trials = ",\n".join(map(self._text, ledger.trials))
        content = f'{opening[:-2]},\n "trials": [\n{trials}\n ]\n}}'
        ledger.directory.write(ledger.directory.summary, content.encode())
        now = time.monotonic()
        self._due = now + max(_SECONDS_BETWEEN, _SHARE * (now - started))

    def _text(self, trial: Trial) -> str:
        """Return a trial as one line; it is made once, because a search may have thousands."""
        known = self._texts.get(trial.number)
        if known is None or known[0] is not trial:
            known = self._texts[trial.number] = (trial, f"  {json.dumps(_speakable(_trial(trial)))}")
        return known[1]


def _overview(ledger: Ledger, notes: list[str], reason: str | None) -> dict[str, Any]:
    """Return all but the trials. Numbers that JSON has no word for are texts: "inf", "-inf" and "nan"."""
    reference = ledger.reference
    return {
        "version": VERSION,
        "stopped_by": reason,
        "seconds": ledger.seconds,
        "direction": ledger.direction,
        "objectives": list(ledger.options.objectives),
        "tolerance": ledger.tolerance,
        "float": None if reference is None else {"score": reference.value, "interval": reference.interval},
        "best": None if ledger.best is None else ledger.best.number,
        "candidates": [trial.number for trial in ledger.candidates],
        "pareto": [trial.number for trial in ledger.pareto],
        "notes": list(notes),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "space": trial.space,
        "assignment": {name: _value(value) for name, value in trial.assignment.items()},
        "state": trial.state,
        "score": trial.score,
        "interval": trial.interval,
        "drop": trial.drop,
        "accepted": trial.accepted,
        "objectives": dict(trial.objectives),
        "error": trial.error,
        "seconds": trial.seconds,
        "computed": dict(trial.computed),
        "reused": list(trial.reused),
        "samples": trial.samples,
        "same_as": trial.same_as,
        "model": None if trial.model_path is None else trial.model_path.name,
        "recipe": to_plain(trial.recipe),
    }


def _value(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _speakable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _speakable(item) for name, item in value.items()}
    return [_speakable(item) for item in value] if isinstance(value, list | tuple) else value
