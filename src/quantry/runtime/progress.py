"""A progress bar on a terminal or in a notebook, and lines of long commands on standard error."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from quantry.notebook import NotebookBar, in_notebook

T = TypeVar("T")

_enabled = True

# Seconds of silence after which a long command says where it is.
_SILENCE = 10.0

# When a command last said something; None outside of commands, where a library prints nothing by itself.
_told: float | None = None


def set_enabled(enabled: bool) -> None:
    """Show progress bars on a terminal, or nowhere."""
    global _enabled  # noqa: PLW0603  one terminal, one setting
    _enabled = enabled


def set_lines(visible: bool) -> None:
    """Show the lines of `tell` from now on, or not.

    Args:
        visible: Whether to show them.
    """
    global _told  # noqa: PLW0603  one standard error, one setting
    _told = time.monotonic() if visible else None


def tell(line: str) -> None:
    """Print where a long job is on standard error, unless something was said within the last seconds.

    Args:
        line: What to say.
    """
    global _told  # noqa: PLW0603  one standard error, one setting
    if _told is None or time.monotonic() - _told < _SILENCE or sys.stderr is None:
        return
    _told = time.monotonic()
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def progress(items: Iterable[T], title: str, total: int | None) -> Iterator[T]:
    """Yield the items, with a progress bar on standard error if that is a terminal.

    Args:
        items: The items.
        title: Text in front of the bar.
        total: Number of items, or None if unknown.
    """
    if _enabled and in_notebook():
        yield from _in_notebook(items, title, total)
        return
    if not on_terminal():
        yield from items
        return
    # Imported here because most runs are not on a terminal and the import takes longer than a small model's pass.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=title)


def _in_notebook(items: Iterable[T], title: str, total: int | None) -> Iterator[T]:
    bar = NotebookBar(title, total)
    drawn_at = 0.0
    try:
        for done, item in enumerate(items):
            # Ten updates per second are enough for people, and cost nothing.
            if time.monotonic() - drawn_at > 0.1:
                drawn_at = time.monotonic()
                bar.show(done)
            yield item
    finally:
        bar.close()


def on_terminal() -> bool:
    """Return whether standard error is a terminal and progress is shown."""
    return _enabled and sys.stderr is not None and sys.stderr.isatty()
