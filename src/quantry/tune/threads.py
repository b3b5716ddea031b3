"""How many threads compute."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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
