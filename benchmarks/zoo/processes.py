"""Runs architectures one after the other, each in a process that may crash, hang or take too much memory."""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.zoo.measurement import measure
from benchmarks.zoo.onnx_results import Entry


@dataclass(frozen=True)
class Limits:
    """What one process may take; most need much less.

    Attributes:
        seconds: Processor time.
        gigabytes: Memory.
    """

    seconds: float = 300.0
    gigabytes: float = 6.0


_WAITING = 5
"""A process that waits, or shares the processor, may take this many times as long as its limit of processor time."""

_PRELOADED = ["benchmarks.zoo.preloaded"]
_POLL = 0.2


def measured(names: Sequence[str], seconds: float, limits: Limits) -> Iterator[tuple[str, Entry]]:
    """Yield each architecture with what was measured; begin no other one when the time is over.

    Processes are forked from one that has imported the libraries, which takes longer than many of the models.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    ends = time.monotonic() + seconds
    for name in names:
        if time.monotonic() > ends:
            return
        with tempfile.TemporaryDirectory(prefix="quantry-zoo-") as folder:
            worker = context.Process(target=measure, args=(name, folder), daemon=True)
            started = time.monotonic()
            worker.start()
            reason = _watch(worker, started, limits)
            kept = Path(folder, "entry.json")
            entry: Entry = json.loads(kept.read_text()) if kept.exists() else {}
        if reason:
            entry["stopped"] = reason
        elif "done" not in entry and entry.get("built", {}).get("state") == "ok":
            entry["stopped"] = f"exit status {worker.exitcode}"
        entry.pop("done", None)
        yield name, {**entry, "seconds": round(time.monotonic() - started, 1)}


def _watch(worker: multiprocessing.process.BaseProcess, started: float, limits: Limits) -> str:
    """Wait for a process; return why it was stopped, or nothing."""
    while worker.is_alive():
        worker.join(_POLL)
        if _processor_seconds(worker.pid) > limits.seconds or time.monotonic() - started > _WAITING * limits.seconds:
            reason = f"took more than {limits.seconds:.0f} s"
        elif _resident(worker.pid) > limits.gigabytes * 2**30:
            reason = f"took more than {limits.gigabytes:g} GB"
        else:
            continue
        worker.kill()
        worker.join()
        return reason
    return ""


def _processor_seconds(process: int | None) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(process: int | None) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)
