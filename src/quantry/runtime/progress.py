"""A progress bar on a terminal, nothing elsewhere."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_enabled = True


def set_enabled(enabled: bool) -> None:
    """Show progress bars on a terminal, or nowhere."""
    global _enabled  # noqa: PLW0603  one terminal, one setting
    _enabled = enabled


def progress(items: Iterable[T], title: str, total: int | None) -> Iterator[T]:
    """Yield the items, with a progress bar on standard error if that is a terminal.

    Args:
        items: The items.
        title: Text in front of the bar.
        total: Number of items, or None if unknown.
    """
    if not on_terminal():
        yield from items
        return
    # Imported here because most runs are not on a terminal and the import takes longer than a small model's pass.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=title)


def on_terminal() -> bool:
    """Return whether standard error is a terminal and progress is shown."""
    return _enabled and sys.stderr is not None and sys.stderr.isatty()
