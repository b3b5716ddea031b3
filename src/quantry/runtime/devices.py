"""The machine: its name, which timings depend on, and its memory."""

import ctypes
import functools
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from quantry.runtime.threads import core_count


@functools.cache  # It does not change, and reading the file takes milliseconds.
def machine_name() -> str:
    """Return processor and usable cores, such as ``"Intel(R) Xeon(R) Processor, 2 cores"``."""
    return f"{_processor()}, {core_count()} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def trim_memory() -> None:
    """Return freed memory to the operating system.

    The C library keeps freed blocks. After large arrays of many sizes they are too fragmented to be used again, and
    the process keeps growing.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache  # Called after every layer.
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Only the GNU C library has this function.
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
