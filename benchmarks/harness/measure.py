"""Runs a task in a fresh process and returns what it cost."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.locations import ROOT, cache
from benchmarks.peer_environment import peer_python

THREADS = 2
"""Threads and processors that every side gets."""

_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Measurement:
    """What one run of a side cost.

    Attributes:
        seconds: Wall time of the job, without imports.
        cpu_seconds: User and system time of the job.
        peak_bytes: Largest resident memory of the process, imports and all.
        process_seconds: Wall time from start to end of the process.
        facts: What the job told about itself.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    process_seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Failure(Exception):  # noqa: N818 - an outcome that the table reports
    """A side did not finish; the text says why."""


def measure(task: str, arguments: Mapping[str, Any], *, peer: bool = False, timeout: float = 1200.0) -> Measurement:
    """Run a task in a fresh process, in an empty folder.

    Args:
        task: ``module:function``.
        arguments: Its keyword arguments, plain data.
        peer: Use the peer's environment.
        timeout: Seconds after which it is given up.

    Raises:
        Failure: It did not finish.
        NotAvailable: There is no peer.
    """
    python = peer_python() if peer else Path(sys.executable)
    with tempfile.TemporaryDirectory(prefix="quantry-bench-") as folder:
        job, result, log = (Path(folder, name) for name in ("job.json", "result.json", "log.txt"))
        plain = {"task": task, "arguments": dict(arguments), "threads": THREADS, "memory_limit": _memory_limit()}
        job.write_text(json.dumps(plain))
        command = [str(python), "-m", "benchmarks.harness.worker", str(job), str(result)]
        work = Path(folder, "work")
        work.mkdir()
        started = time.perf_counter()
        status = _run(command, work, log, timeout)
        elapsed = time.perf_counter() - started
        if status != 0 or not result.exists():
            # Results are published, so a message names no folder of this machine.
            raise Failure(_reason(status, log, timeout).replace(str(work), ".").replace(str(cache()), "CACHE"))
        return Measurement(process_seconds=elapsed, **json.loads(result.read_text()))


def _run(command: list[str], work: Path, log: Path, timeout: float) -> int | None:
    """Return the exit status, or None when time was up."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=work, env=_environment(work), stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            return process.wait(timeout)
        except BaseException as error:
            # The process leads a session of its own, so this reaches its children and nobody else.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def _environment(work: Path) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS))
    places = {"PYTHONPATH": str(ROOT), "TMPDIR": str(work), "QUANTRY_CACHE": str(work / "store")}
    return {**os.environ, **threads, **places}


def _reason(status: int | None, log: Path, timeout: float) -> str:
    if status is None:
        return f"not finished after {timeout:.0f} s"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1][-200:] if lines else "no message"
    return f"killed by signal {-status}: {last}" if status < 0 else last


def _memory_limit() -> int:
    """Return how much memory a side may take before it fails, so that it cannot take the machine down."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE)
