"""The table of a running search, in a terminal or a notebook."""

import math
import textwrap
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any

from quantry.autosearch.differences import difference_text
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial
from quantry.evaluate import objective_text
from quantry.notebook import in_notebook
from quantry.runtime import progress

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_SHOWN_TRIALS = 12
_MAX_ERROR = 100

# The end of the search and that of its budget are one if they are this close.
_SAME_SECONDS = 2.0


@dataclass(frozen=True)
class TableRow:
    """A recorded trial as the table shows it.

    Attributes:
        trial: The trial.
        difference: What differs from the best trial before it.
        is_best: Whether it became the best.
    """

    trial: Trial
    difference: str
    is_best: bool


def headings(objectives: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of the table."""
    return ("trial", "score", "drop", *objectives[1:], "seconds", "what differs from the best before it")


def cells(row: TableRow, objectives: Sequence[str]) -> tuple[str, ...]:
    """Return a row of the table; a failed trial shows its error."""
    trial = row.trial
    others = (objective_text(name, trial.objectives.get(name)) for name in objectives[1:])
    if trial.score is None:
        text = f"{row.difference}: {textwrap.shorten(trial.error or '', _MAX_ERROR, placeholder=' ...')}"
        return (str(trial.number), "failed", "", *others, f"{trial.seconds:.1f}", text)
    drop = "" if trial.drop is None else f"{trial.drop:.4g}"
    shared = "" if trial.same_as is None else f" (same model as trial {trial.same_as})"
    return (str(trial.number), scored(trial), drop, *others, f"{trial.seconds:.1f}", f"{row.difference}{shared}")


def scored(trial: Trial) -> str:
    """Return a score with half of its confidence interval; an estimate starts with ``~``."""
    if trial.score is None:
        return "failed"
    mark = "~" if trial.state == "pruned" else ""
    half = "" if trial.interval is None else f" ±{(trial.interval[1] - trial.interval[0]) / 2:.2g}"
    return f"{mark}{trial.score:.5g}{half}"


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
        self._rows.append(TableRow(trial, difference_text(trial.assignment, self._best), is_best))
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

        objectives = state.options.objectives
        table = Table(box=SIMPLE, pad_edge=False)
        *numbers, last = headings(objectives)
        for name in numbers:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column(last, overflow="fold")
        for row in tuple(self._rows):
            style = "red" if row.trial.state == "failed" else "bold" if row.is_best else None
            table.add_row(*(Text(cell) for cell in cells(row, objectives)), style=style)
        return Group(*(Text(line) for line in self._around(state)[0]), table, *map(Text, self._around(state)[1]))

    def _html(self, state: SearchState) -> str:
        objectives = state.options.objectives
        heads = "".join(f"<th>{escape(name)}</th>" for name in headings(objectives))
        rows = "".join(_html_row(cells(row, objectives), bold=row.is_best) for row in self._rows)
        above, below = self._around(state)
        return f"{_paragraphs(above)}<table><tr>{heads}</tr>{rows}</table>{_paragraphs(below)}"

    def _around(self, state: SearchState) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return header(state), (self._footer,) if self._footer else ()


def _html_row(texts: Sequence[str], *, bold: bool) -> str:
    style = ' style="font-weight:bold"' if bold else ""
    return f"<tr{style}>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
