"""Pausing Python's cycle collector while a graph is built or written."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Make no search for unused cycles until the block ends; for blocks of well under a second.

    Values and nodes of a graph refer to each other. Making ten thousand of them lets the collector walk over everything
    in the process several times, without finding anything: a third of the time that writing a model takes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
