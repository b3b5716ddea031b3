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


def call(function: Any, task: ctypes.Structure, *, alone: bool) -> None:
    """Call a function of a C library with a task, in as many threads as torch computes in.

    Args:
        function: Takes a pointer to the task; any number of threads may call it with the same at once.
        task: What is to be done.
        alone: It is too little for several threads.
    """
    # All threads or one: those that are left out of a team end, and are started again for torch's next operation.
    threads = 1 if alone else torch.get_num_threads()
    in_threads = torch_threads() if threads > 1 else None
    if in_threads is None:
        function(ctypes.byref(task))
    else:
        in_threads(function, ctypes.pointer(task), threads)


@functools.cache  # The library is searched and its function bound once per process.
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
    paths = sorted({Path(match[0]) for line in lines if (match := re.search(r"/.*/lib[gi]omp[^/]*\.so[^/]*$", line))})
    home = Path(torch.__file__).resolve().parent
    own = [path for path in paths if home in path.parents or path.parent.name == "torch.libs"]
    if own:
        return own[0]
    return paths[0] if len(paths) == 1 else None
