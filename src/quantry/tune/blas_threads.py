"""Keeps numpy's linear algebra on one thread where parts of the work run in threads of their own."""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

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
