"""A table in the terminal that grows while the search runs."""

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from quantry.autosearch.ledger import Ledger
from quantry.autosearch.table import by_difference, columns, row
from quantry.autosearch.trial import Trial

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_ROWS = 10


class LiveTable:
    """Shows the best trials so far, the newest one, and how long the rest will take.

    Nothing is shown where standard error is no terminal.
    """

    def __init__(self) -> None:
        self._live: Live | None = None

    def opened(self, ledger: Ledger, lines: list[str]) -> None:
        """Begin to show."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        for line in (ledger.opening, *lines):
            console.print(line, highlight=False, markup=False)
        self._live = Live(self._content(ledger, None), console=console, refresh_per_second=4)
        self._live.start()

    def settled(self, ledger: Ledger, trial: Trial) -> None:
        """Show what is known."""
        if self._live is not None:
            self._live.update(self._content(ledger, trial))

    def told(self, ledger: Ledger, line: str) -> None:
        """Show what goes on below the table."""
        if self._live is not None:
            self._live.update(self._content(ledger, None, f"{line}; {progress_text(ledger)}"))

    def closed(self, ledger: Ledger, reason: str) -> None:
        """Show why it ended, and stop."""
        if self._live is not None:
            self._live.update(self._content(ledger, None, reason))
            self._live.stop()
            self._live = None

    def _content(self, ledger: Ledger, newest: Trial | None, reason: str | None = None) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns(ledger.options.objectives), box=None)
        best = by_difference([trial for trial in ledger.trials if trial.score is not None])[:_ROWS]
        shown = [*best, *([newest] if newest is not None and newest not in best else [])]
        for trial in shown:
            mark = "bold" if ledger.best is not None and trial.number == ledger.best.number else None
            table.add_row(*row(trial, ledger.options.objectives), style=mark)
        return Group(table, Text(reason or progress_text(ledger)))


def progress_text(ledger: Ledger) -> str:
    """Return how far a search is and how long the rest will take."""
    done, total = len(ledger.trials), ledger.expected_trials
    left = ledger.seconds_left
    share = f"{done} of {total} trials" if total is not None else f"{done} trials"
    rest = "" if left is None else f", about {timedelta(seconds=round(left))} left"
    return f"{share}, {timedelta(seconds=round(ledger.seconds))} so far{rest}"
