"""Gives memory that is not used any more back to the system."""

import ctypes
import functools
import sys
from collections.abc import Callable


def give_back() -> None:
    """Give freed memory back where the C library keeps it; large arrays of many sizes would leave holes that add up."""
    trimmer = _trimmer()
    if trimmer is not None:
        trimmer(0)


@functools.cache
def _trimmer() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Only the GNU C library has it.
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
