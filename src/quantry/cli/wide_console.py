"""Tables for people and for pipes."""

import sys

from rich.console import Console

_UNLIMITED = 10_000


def table_console() -> Console:
    """Return a console that folds cells to fit a terminal, and leaves them whole in a pipe or a file."""
    return Console() if sys.stdout.isatty() else Console(width=_UNLIMITED)
