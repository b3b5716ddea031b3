"""A line for each finished trial, for whoever listens to the logger."""

import logging

from quantry.autosearch.ledger import Ledger
from quantry.autosearch.live_table import progress_text
from quantry.autosearch.trial import Trial

LOGGER = "quantry.autosearch"
"""Where lines go, at the level INFO; nothing is shown unless somebody asks for that level."""


class ProgressLog:
    """Logs one short line for each trial that finishes, and one at the end."""

    def __init__(self) -> None:
        self._log = logging.getLogger(LOGGER)

    def opened(self, ledger: Ledger, lines: list[str]) -> None:
        """Say where to read more."""
        self._log.info("%s: %s; more in %s", ledger.opening, "".join(lines[:1]), ledger.options.log_file)

    def settled(self, ledger: Ledger, trial: Trial) -> None:
        """Log what came of a trial, unless it finished before an interruption."""
        if trial.number in ledger.restored or not self._log.isEnabledFor(logging.INFO):
            return
        best = ", best so far" if ledger.best is not None and ledger.best.number == trial.number else ""
        result = "failed" if trial.score is None else f"score {trial.score:.6g}, drop {trial.drop:.4g}{best}"
        self._log.info("trial %d: %s; %s", trial.number, result, progress_text(ledger))

    def told(self, ledger: Ledger, line: str) -> None:  # noqa: ARG002 - the line is enough
        """Log what goes on."""
        self._log.info("%s", line)

    def closed(self, ledger: Ledger, reason: str) -> None:
        """Log why the search ended."""
        self._log.info("search ends after %d trials: %s", len(ledger.trials), reason)
