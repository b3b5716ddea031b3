"""A progress bar on a terminal, nothing elsewhere.

A progress bar for people, silence for everything else.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], title: str, total: int | None) -> Iterator[T]:
    """Yield the items; show on the standard error stream how many have been seen, if it is a terminal.

    Args:
        items: What to go through.
        title: What the bar is called.
        total: Number of items, or None if it is not known.
    """
    if not on_terminal():
        yield from items
        return
    # Imported here because most runs are not on a terminal and the import costs more than a small model's pass.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=title)


def on_terminal() -> bool:
    """Return whether somebody may be watching the standard error stream."""
    return sys.stderr is not None and sys.stderr.isatty()


def with_progress(items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    """Yield the items, with a bar on standard error while that is a terminal.

    Args:
        items: What is worked through.
        description: What stands before the bar.
        total: How many there are; the bar is open-ended where that is not known.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description, total=total, console=Console(stderr=True), transient=True)
