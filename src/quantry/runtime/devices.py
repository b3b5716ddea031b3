"""Which kind of machine this is: times hold for one kind only.

Gives memory that is not used any more back to the system.
"""

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path


@functools.cache
def machine_name() -> str:
    """Return processor and usable cores, such as ``"Intel(R) Xeon(R) Processor, 2 cores"``."""
    # Windows knows no affinity; Python 3.13 has os.process_cpu_count for this.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


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
