"""How many threads compute: the one answer for onnxruntime, torch, OpenBLAS and our own thread pools."""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from quantry.operating_system import core_count

T = TypeVar("T")
Result = TypeVar("Result")

# Below this many numbers, torch's threads cost more in waiting for each other than they save.
_SMALL = 200_000

# Below this many columns, a product or a Cholesky factor takes one thread less time than several need to share it.
_NARROW = 1000

# The compiled kernels process this many rows at a time, so threads get multiples of it.
_ROWS_TOGETHER = 8

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def thread_count() -> int:
    """Return how many threads this process may use: one per core it may run on, or OMP_NUM_THREADS if that is less."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(core_count(), int(limit))) if limit.isdigit() else core_count()


def limit_threads(threads: int) -> None:
    """Limit this process to a number of threads, for the rest of its life. Meant for worker processes.

    It holds for `thread_count`, OpenBLAS, torch, and every onnxruntime session that is opened from now on, including
    those of a user's evaluator. Sessions whose options set a number of threads keep it. Threads do not spin while they
    wait: two workers with two spinning threads each on two cores are slower than with one thread each.

    Args:
        threads: Threads inside one operator.
    """
    import onnxruntime

    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)
    # The variables only reach libraries that are loaded later.
    library = _openblas()
    if library is not None:
        library.set(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    original = onnxruntime.InferenceSession.__init__

    def open_limited(self: Any, path_or_bytes: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        if options.intra_op_num_threads == 0:
            options.intra_op_num_threads = threads
        _set_if_absent(options, "session.intra_op.allow_spinning", "0")
        original(self, path_or_bytes, options, *args, **kwargs)

    onnxruntime.InferenceSession.__init__ = open_limited


def _set_if_absent(options: Any, key: str, value: str) -> None:
    """Set an entry that the caller did not set: onnxruntime warns if one is set twice, and cannot be asked first."""
    try:
        options.get_session_config_entry(key)
    except Exception:  # onnxruntime's exceptions share no base class below Exception
        options.add_session_config_entry(key, value)


def in_threads(function: Callable[[T], Result], items: Sequence[T]) -> list[Result]:
    """Return the results of a function for each item, computed in parallel.

    Args:
        function: Must release the interpreter lock while it works, or threads do not help.
        items: Its arguments.
    """
    workers = min(thread_count(), len(items))
    if workers < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def row_parts(rows: int) -> list[range]:
    """Return the rows of a layer in parts, one for each thread.

    Args:
        rows: Number of rows.
    """
    share = -(-rows // (thread_count() * _ROWS_TOGETHER)) * _ROWS_TOGETHER
    return [range(first, min(rows, first + share)) for first in range(0, rows, share)]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch on one thread inside the block. Does nothing if torch is not loaded."""
    torch = sys.modules.get("torch")
    before = 1 if torch is None else torch.get_num_threads()
    if torch is None or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def threads_for(elements: int) -> Iterator[None]:
    """Run torch on one thread inside the block if tensors are small.

    On small tensors threads cost more than they save; next to another busy process they are a hundred times slower.

    Args:
        elements: Size of the tensors.
    """
    if elements >= _SMALL:
        yield
        return
    with one_torch_thread():
        yield


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Compute NumPy's matrix products on one thread inside the block.

    After each product, OpenBLAS's threads wait for the next one in a busy loop and take the cores from our own threads.
    Does nothing if NumPy was built with another library.
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


@contextmanager
def blas_threads_for(width: int) -> Iterator[None]:
    """Compute NumPy's matrix products on one thread inside the block if matrices are small.

    Args:
        width: Number of columns of the matrices.
    """
    if width >= _NARROW:
        yield
        return
    with one_blas_thread():
        yield


# NumPy's wheels add a prefix, and a suffix for 64-bit indices, to the names of OpenBLAS's functions.
_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")


class _OpenBlas:
    """The functions of OpenBLAS that get and set its number of threads."""

    def __init__(self, file: Path) -> None:
        library = ctypes.CDLL(str(file))
        names = [(prefix, suffix) for prefix in _PREFIXES for suffix in _SUFFIXES]
        prefix, suffix = next(pair for pair in names if hasattr(library, f"{pair[0]}_set_num_threads{pair[1]}"))
        self._get = getattr(library, f"{prefix}_get_num_threads{suffix}")
        self._set = getattr(library, f"{prefix}_set_num_threads{suffix}")

    def get(self) -> int:
        """Return the number of threads."""
        return int(self._get())

    def set(self, count: int) -> None:
        """Set the number of threads."""
        self._set(ctypes.c_int(count))


@functools.cache  # Searching the folders for the library takes longer than calling it.
def _openblas() -> _OpenBlas | None:
    """Return the OpenBLAS of NumPy's wheel. It is loaded already, so loading it again returns the one in use."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs")
    for file in (file for folder in folders if folder.is_dir() for file in sorted(folder.glob("*openblas*"))):
        try:
            return _OpenBlas(file)
        except (OSError, StopIteration):
            continue
    return None
