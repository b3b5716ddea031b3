"""The measured process: runs one task and writes what it cost. Imports nothing but the standard library itself.

Run by `measure`: python -m benchmarks.harness.worker JOB.json RESULT.json
"""

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any


def peak_bytes() -> int:
    """Return the largest resident memory of this process.

    ``getrusage`` is no use for it: its maximum survives ``exec``, so a child starts with that of its parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def cpu_seconds() -> float:
    """Return user and system time of this process and its finished children."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the task and return its measures and facts."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
    resource.setrlimit(resource.RLIMIT_DATA, (job["memory_limit"], job["memory_limit"]))
    module, function = job["task"].split(":")
    timed = getattr(importlib.import_module(module), function)(**job["arguments"])
    wall, cpu = time.perf_counter(), cpu_seconds()
    facts = timed()
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": cpu_seconds() - cpu,
        "peak_bytes": peak_bytes(),
        "facts": dict(facts or {}),
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
