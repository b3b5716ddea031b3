"""The table of a running search, in a terminal or a notebook."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any

from quantry.autosearch.differences import difference_text
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial, TrialState
from quantry.autosearch.trial_row import cells, html_table, trial_texts
from quantry.notebook import in_notebook
from quantry.runtime import progress

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_SHOWN_TRIALS = 12
_DIFFERENCE = "what differs from the best before it"

# The end of the search and that of its budget are one if they are this close.
_SAME_SECONDS = 2.0


@dataclass(frozen=True)
class TableRow:
    """A recorded trial as the table shows it.

    Attributes:
        texts: Its columns; the configuration is what differs from the best trial before it.
        state: How the trial ended.
        is_best: Whether it became the best.
    """

    texts: Mapping[str, str]
    state: TrialState
    is_best: bool


def _columns(objectives: Sequence[str]) -> tuple[str, ...]:
    return ("trial", "score", "95 %", "drop", *objectives[1:], "seconds", "configuration")


def scored(trial: Trial) -> str:
    """Return a score with half of its confidence interval."""
    return " ".join(filter(None, cells(trial_texts(trial), ("score", "95 %"))))


def header(state: SearchState) -> tuple[str, ...]:
    """Return the lines above the table: the best trial, what it is compared with, and the time."""
    best = state.best
    found = "no trial finished yet"
    if best is not None:
        found = f"best: trial {best.number}, {scored(best)}, drop {best.drop:.4g}"
    reference = "float: not evaluated yet" if state.reference is None else f"float: {state.reference.value:.5g}"
    tolerance = "no tolerance" if state.tolerance is None else f"tolerance: {state.tolerance:.4g}"
    return f"{found}; {reference}; {tolerance}", time_text(state)


def time_text(state: SearchState) -> str:
    """Return how many trials are done, the time left of the budget, and when the search is expected to end."""
    done, total = len(state.trials), state.expected_trials
    share = f"{done} of {total} trials" if total is not None else f"{done} trials"
    parts = [share, f"{_clock(state.seconds)} so far"]
    if state.time.left is not None:
        parts.append(f"{_clock(max(state.time.left, 0.0))} of the budget left")
    left = state.seconds_left
    # A search that uses its whole budget ends with it.
    if left and (state.time.left is None or abs(left - state.time.left) > _SAME_SECONDS):
        parts.append(f"done in about {_clock(left)}")
    failed = sum(trial.state == "failed" for trial in state.trials)
    return ", ".join((*parts, *((f"{failed} failed",) if failed else ())))


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=math.ceil(seconds)))


class LiveTable:
    """Shows the newest trials, the best one and the time left while a search runs.

    In a terminal it is drawn on standard error, in a notebook below the cell. Elsewhere nothing is shown.
    """

    def __init__(self) -> None:
        self._rows: deque[TableRow] = deque(maxlen=_SHOWN_TRIALS)
        self._best: Mapping[str, Any] | None = None
        self._footer = ""
        self._live: Live | None = None
        self._display: Any = None

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """Show the table."""
        if in_notebook():
            from IPython.display import HTML, display

            self._display = display(HTML(self._html(state)), display_id=True)
        elif progress.on_terminal():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            for line in (state.headline, *lines):
                console.print(line, highlight=False, markup=False)
            # Drawn again four times a second, so that the clock runs during long trials.
            self._live = Live(get_renderable=lambda: self._content(state), console=console, refresh_per_second=4)
            self._live.start()
            # The bars of stages would be drawn over the table.
            progress.set_enabled(False)

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Add a trial to the table."""
        is_best = state.best is not None and state.best.number == trial.number
        texts = trial_texts(trial, difference_text(trial.assignment, self._best))
        self._rows.append(TableRow(texts, trial.state, is_best))
        self._footer = ""
        if is_best:
            self._best = trial.assignment
        self._refresh(state)

    def on_message(self, state: SearchState, line: str) -> None:
        """Show the line below the table."""
        self._footer = line
        self._refresh(state)

    def on_end(self, state: SearchState, reason: str) -> None:
        """Show why the search ended, and stop."""
        self._footer = reason
        self._refresh(state)
        if self._live is not None:
            self._live.stop()
            self._live = None
            progress.set_enabled(True)

    def _refresh(self, state: SearchState) -> None:
        if self._display is not None:
            from IPython.display import HTML

            self._display.update(HTML(self._html(state)))

    def _content(self, state: SearchState) -> "Group":
        from rich.box import SIMPLE
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        columns = _columns(state.options.objectives)
        table = Table(box=SIMPLE, pad_edge=False)
        for name in columns[:-1]:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column(_DIFFERENCE, overflow="fold")
        for row in tuple(self._rows):
            style = "red" if row.state == "failed" else "bold" if row.is_best else None
            table.add_row(*(Text(cell) for cell in cells(row.texts, columns)), style=style)
        return Group(*(Text(line) for line in self._around(state)[0]), table, *map(Text, self._around(state)[1]))

    def _html(self, state: SearchState) -> str:
        columns = _columns(state.options.objectives)
        rows = [(cells(row.texts, columns), row.is_best) for row in self._rows]
        above, below = self._around(state)
        return f"{_paragraphs(above)}{html_table((*columns[:-1], _DIFFERENCE), rows)}{_paragraphs(below)}"

    def _around(self, state: SearchState) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return header(state), (self._footer,) if self._footer else ()


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
