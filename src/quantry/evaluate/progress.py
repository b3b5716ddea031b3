"""A progress bar for people, silence for everything else."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


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
