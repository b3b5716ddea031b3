"""Progress of a search where there is no terminal to draw a table in."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lines_without_terminal() -> Iterator[None]:
    """Write a line for each finished trial to standard error, unless that is a terminal, which has a table."""
    if sys.stderr.isatty():
        yield
        return
    # Only here: it loads the search.
    from quantry.autosearch.progress_log import LOGGER

    logger = logging.getLogger(LOGGER)
    before = (logger.level, logger.propagate)
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # With --verbose the root logger writes to the same place.
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
