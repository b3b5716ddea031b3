"""Which kind of machine this is: times hold for one kind only."""

import functools
import os
import platform
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
