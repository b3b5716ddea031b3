"""Runs a C function in the threads that torch has, without torch's headers.

torch on a CPU computes in the threads of an OpenMP library that it brings along. These wait for their next work by
looking for it all the time, so that any other threads would share the cores with them.
"""

import ctypes
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


@functools.cache
def torch_threads() -> Callable[[Any, Any, int], None] | None:
    """Return what calls a function of a C library in several threads at once, or None where it is not found.

    What is returned takes the function, the pointer that each thread calls it with, and how many threads there may be.
    There may be fewer.
    """
    path = _loaded_library()
    if path is None:
        return None
    try:
        found = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD).GOMP_parallel
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    found.restype = None

    def run(function: Any, argument: Any, threads: int) -> None:
        found(ctypes.cast(function, ctypes.c_void_p), ctypes.cast(argument, ctypes.c_void_p), threads, 0)

    return run


def _loaded_library() -> Path | None:
    """Return the OpenMP library that torch uses: the one in its folder, else the only one of this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {Path(match[0]) for line in lines if (match := re.search(r"/\S*lib[gi]omp[^/]*\.so[^/]*$", line))}
    home = Path(torch.__file__).resolve().parent
    own = [path for path in paths if home in path.parents or path.parent.name == "torch.libs"]
    if own:
        return own[0]
    return paths.pop() if len(paths) == 1 else None
