"""Keeps the tensors that one part of a model passes to the next, of all samples, in memory or on disk."""

import tempfile
import threading
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from quantry.errors import StoreError

MEMORY_BYTES = 64_000_000
"""What is kept in memory before the disk is used; the float and the quantized model have a store each."""

_BUDGETS = {0: None, 1: MEMORY_BYTES, 2: 0}

Array = npt.NDArray[Any]


class ActivationStore:
    """Arrays by tensor name and sample; several threads may put and get at once.

    Args:
        level: 0 keeps all in memory, 1 uses the disk above `MEMORY_BYTES`, 2 keeps all on disk.
        directory: Where files lie; None is the system's temporary folder. They have no name there and go with the
            process.
    """

    def __init__(self, level: int, directory: str | None) -> None:
        self._budget = _BUDGETS[level]
        self._directory = directory
        self._held = 0
        self._arrays: dict[str, dict[int, Array | _Place]] = {}
        self._files: dict[str, IO[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def in_memory(self) -> bool:
        """Whether anything is kept in memory."""
        return self._budget != 0

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._arrays))

    def put(self, name: str, sample: int, array: Array) -> None:
        """Keep an array."""
        with self._lock:
            entries = self._arrays.setdefault(name, {})
            if self._budget is None or self._held + array.nbytes <= self._budget:
                self._held += array.nbytes
                entries[sample] = array
            else:
                entries[sample] = self._write(name, array)

    def get(self, name: str, sample: int) -> Array:
        """Return an array that was put; it may be the same object, so nobody changes it."""
        entry = self._arrays[name][sample]
        if not isinstance(entry, _Place):
            return entry
        with self._lock:
            file = self._files[name]
            file.seek(entry.offset)
            read = file.read(entry.nbytes)
        return np.frombuffer(read, entry.dtype).reshape(entry.shape)

    def drop(self, name: str) -> None:
        """Forget a tensor."""
        for entry in self._arrays.pop(name, {}).values():
            if not isinstance(entry, _Place):
                self._held -= entry.nbytes
        file = self._files.pop(name, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Forget everything."""
        for name in tuple(self._arrays):
            self.drop(name)

    def _write(self, name: str, array: Array) -> "_Place":
        try:
            if name not in self._files:
                self._files[name] = tempfile.TemporaryFile(prefix="quantry-", dir=self._directory)  # noqa: SIM115
            file = self._files[name]
            place = _Place(file.seek(0, 2), array)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise StoreError(
                f"the folder for activations must exist and have room, got {error}; tensor {name!r}; set TMPDIR or "
                "cache_directory to a larger disk, or use fewer samples"
            ) from error
        return place


class _Place:
    """Where an array lies in its file."""

    def __init__(self, offset: int, array: Array) -> None:
        self.offset, self.nbytes, self.dtype, self.shape = offset, array.nbytes, array.dtype, array.shape
