"""How many threads compute.

Keeps numpy's linear algebra on one thread where parts of the work run in threads of their own.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

_SMALL = 200_000

_ROWS_TOGETHER = 8
"""A thread gets a multiple of so many rows, where there are enough: compiled functions do as many at a time."""

T = TypeVar("T")
Result = TypeVar("Result")


def threads() -> int:
    """Return how many threads this process may use: one for each core it may run on, or OMP_NUM_THREADS if fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(wanted))) if wanted.isdigit() else cores


def in_threads(function: Callable[[T], Result], items: Sequence[T]) -> list[Result]:
    """Return what a function gives for each item, several at a time where there are threads for it.

    Args:
        function: It leaves the interpreter's lock to others while it works.
        items: What it is called with.
    """
    workers = min(threads(), len(items))
    if workers < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def row_parts(rows: int) -> list[range]:
    """Return the rows of a layer in parts, one for each thread.

    Args:
        rows: How many there are.
    """
    share = -(-rows // (threads() * _ROWS_TOGETHER)) * _ROWS_TOGETHER
    return [range(first, min(rows, first + share)) for first in range(0, rows, share)]


@contextmanager
def threads_for(elements: int) -> Iterator[None]:
    """Compute with torch on one thread for the duration of a block where tensors are small.

    Threads that wait for each other cost more than they save there, and beside another busy process a hundredfold.

    Args:
        elements: Numbers in what is computed on.
    """
    import torch

    before = torch.get_num_threads()
    if elements >= _SMALL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let products of matrices run on one thread for the duration of a block.

    Threads of OpenBLAS keep a core busy for a while after each product, waiting for the next one, and take it from
    others. Does nothing where numpy brings no OpenBLAS of its own.
    """
    library = _openblas()
    if library is None:
        yield
        return
    before = library.get()
    library.set(1)
    try:
        yield
    finally:
        library.set(before)


class _OpenBlas:
    """The two functions that count."""

    def __init__(self, file: Path) -> None:
        loaded = ctypes.CDLL(str(file))
        names = [(prefix, suffix) for prefix in _PREFIXES for suffix in _SUFFIXES]
        prefix, suffix = next(pair for pair in names if hasattr(loaded, f"{pair[0]}_set_num_threads{pair[1]}"))
        self._get = getattr(loaded, f"{prefix}_get_num_threads{suffix}")
        self._set = getattr(loaded, f"{prefix}_set_num_threads{suffix}")

    def get(self) -> int:
        """Return how many threads are used."""
        return int(self._get())

    def set(self, count: int) -> None:
        """Use so many threads."""
        self._set(ctypes.c_int(count))


@functools.cache
def _openblas() -> _OpenBlas | None:
    """Return the library that numpy's wheels bring along; loading it again gives the one in use."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs")
    for file in (file for folder in folders if folder.is_dir() for file in sorted(folder.glob("*openblas*"))):
        try:
            return _OpenBlas(file)
        except (OSError, StopIteration):
            continue
    return None
