"""Compiles one C file into a library in the user's cache directory, once, and loads it."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SWITCH = "QUANTRY_NATIVE"
"""Environment variable: ``off`` uses numpy even where there is a compiler."""

_FLAGS = ("-O3", "-shared", "-fPIC")
# Nothing that depends on the processor; no fused multiply-add, so that results are those of numpy.
_EXACT_FLAGS = (*_FLAGS, "-ffp-contract=off", "-std=c99")
# All that this processor has; what differs from numpy is rounding.
_FAST_FLAGS = (*_FLAGS, "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-std=gnu99")
_SECONDS = 60

_LOG = logging.getLogger("quantry")


@functools.cache
def library(source: Path, *, fast: bool = False) -> ctypes.CDLL | None:
    """Return the compiled library of a C file, or None where it cannot be had.

    A function called through it runs beside other Python threads. There is no error: whoever asks has a twin in numpy
    or torch that gives the same results.

    Args:
        source: The C file, without dependencies: standard C99, or GNU C where it is to be fast.
        fast: Use all that this processor has; results may then differ from numpy's by rounding.
    """
    if os.environ.get(SWITCH, "").lower() in ("off", "0") or sys.platform == "win32":
        return None
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_compiled(source, compiler, _FAST_FLAGS if fast else _EXACT_FLAGS)))
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.debug("%s is not compiled, numpy is used: %s", source.name, error)
        return None


def build_id() -> str:
    """Return a text that differs between builds of the kernels; "none" if NumPy is used instead."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0") or sys.platform == "win32" or _compiler() is None:
        return "none"
    return _sources_digest()


@functools.cache
def _sources_digest() -> str:
    sources = sorted(Path(__file__).parents[1].rglob("*.c"))
    identity = repr(([source.read_bytes() for source in sources], _FAST_FLAGS, _processor())).encode()
    return hashlib.sha256(identity).hexdigest()[:24]


def _compiler() -> str | None:
    candidates = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for name in candidates if name and (path := shutil.which(name)) is not None), None)


def _compiled(source: Path, compiler: str, flags: tuple[str, ...]) -> Path:
    """Return the library's path, compiling it if nobody has yet."""
    system = platform.machine(), sys.platform, platform.libc_ver()
    # Machines that share a home directory may have different processors.
    processor = _processor() if "-march=native" in flags else ""
    identity = repr((source.read_bytes(), flags, system, processor)).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantry-native"
    target = folder / f"{source.stem}-{hashlib.sha256(identity).hexdigest()[:24]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *flags, "-o", str(made), str(source), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)  # noqa: S603 - our own source
        # Processes that compile at once each replace the file by the same one.
        made.replace(target)
    return target


def _processor() -> str:
    """Return what tells processors apart as far as instructions go."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = ("model name", "flags", "CPU part", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(named)}))
