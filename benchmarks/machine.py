"""What a result was measured on and with."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import quantry
from benchmarks.locations import ROOT
from benchmarks.peer_environment import REQUIREMENTS

_LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxruntime")


def describe_machine() -> dict[str, Any]:
    """Return processor, memory and system."""
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of both sides."""
    theirs = {f"peer {name}": version for name, version in (entry.split("==") for entry in REQUIREMENTS)}
    return {**library_versions(*_LIBRARIES), **theirs}


def library_versions(*names: str) -> dict[str, str]:
    """Return the versions of Python, quantry and some libraries, and the commit."""
    # quantry may be on the path without being installed.
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), "quantry": quantry.__version__, **found, "commit": _commit()}


def _processor() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
