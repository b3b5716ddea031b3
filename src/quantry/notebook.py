"""What notebooks show of results: small HTML tables, and progress bars."""

import sys
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_STYLE = "style='text-align:left;white-space:pre-wrap'"


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table for a notebook; all cells are plain text.

    Args:
        headings: The headings.
        rows: The cells.
        caption: A line above the table.
    """
    head = "".join(f"<th {_STYLE}>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td {_STYLE}>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    title = f"<p><b>{escape(caption)}</b></p>" if caption else ""
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_details(summary: str, text: str) -> str:
    """Return a text that unfolds on a click."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookBar:
    """A progress bar in the output of a notebook's cell; removed when it is closed.

    Args:
        title: Text in front of the bar.
        total: Number of steps; None if unknown.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._total = total
        self._handle: Any = None

    def show(self, done: int, text: str = "") -> None:
        """Show how many steps are done.

        Args:
            done: The number.
            text: What to show after the bar.
        """
        from IPython.display import HTML, display

        of = "" if self._total is None else f" max={self._total}"
        value = "" if self._total is None else f" value={done}"
        count = f"{done}" if self._total is None else f"{done} of {self._total}"
        content = HTML(f"{escape(self._title)} <progress{value}{of}></progress> {count} {escape(text)}")
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)

    def close(self) -> None:
        """Remove the bar."""
        from IPython.display import HTML

        if self._handle is not None:
            self._handle.update(HTML(""))
