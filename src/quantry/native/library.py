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

# Nothing that depends on the processor, so that a home directory shared by machines is safe; no fused multiply-add, so
# that results are those of numpy.
_FLAGS = ("-O3", "-shared", "-fPIC", "-ffp-contract=off", "-std=c99")
_SECONDS = 60

_LOG = logging.getLogger("quantry")


@functools.cache
def library(source: Path) -> ctypes.CDLL | None:
    """Return the compiled library of a C file, or None where it cannot be had.

    A function called through it runs beside other Python threads. There is no error: whoever asks has a twin in numpy
    that gives the same results.

    Args:
        source: The C file, standard C99 without dependencies.
    """
    if os.environ.get(SWITCH, "").lower() in ("off", "0") or sys.platform == "win32":
        return None
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_compiled(source, compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.debug("%s is not compiled, numpy is used: %s", source.name, error)
        return None


def _compiler() -> str | None:
    candidates = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for name in candidates if name and (path := shutil.which(name)) is not None), None)


def _compiled(source: Path, compiler: str) -> Path:
    """Return the library's path, compiling it if nobody has yet."""
    content = source.read_bytes()
    identity = repr((content, _FLAGS, platform.machine(), sys.platform, platform.libc_ver())).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quantry-native"
    target = folder / f"{source.stem}-{hashlib.sha256(identity).hexdigest()[:24]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *_FLAGS, "-o", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)  # noqa: S603 - our own source
        # Processes that compile at once each replace the file by the same one.
        made.replace(target)
    return target
