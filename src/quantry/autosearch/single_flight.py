"""A store shared by worker processes, in which each stage is computed by one process while the others wait."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from quantry.files import open_regular
from quantry.memo import Blob, Digest, Store
from quantry.notes import Note
from quantry.operating_system import lock_byte, unlock_byte

# Stage keys lock bytes below this offset of the lock file, claims of models bytes above it.
_CLAIMS = 1 << 60


class SingleFlightStore:
    """Wraps a store: a process that misses a key locks it until the result is stored, and others wait for it.

    Without this, workers that start together would all run the same float pass. A process holds one key at a time, so
    there are no deadlocks, and the operating system releases the lock of a process that dies. Models are claimed in
    the same way by the worker that evaluates them, but nobody waits for a claim.

    Args:
        store: The shared store.
        lock_file: A file whose bytes are locked, one per key; created if missing.
    """

    def __init__(self, store: Store, lock_file: Path) -> None:
        self._store = store
        self._path = lock_file
        self._file: IO[bytes] | None = None
        self._held: int | None = None
        self._process = 0

    def __getstate__(self) -> dict[str, object]:
        """Leave the locks with the process that holds them."""
        return {**self.__dict__, "_file": None, "_held": None, "_process": 0}

    def lookup(self, key: Digest) -> Digest | None:
        """Return the digest of the result, waiting while another process computes it; None means compute it."""
        known = self._store.lookup(key)
        if known is not None:
            return known
        self.release()
        offset = int(key[:15], 16)
        if self._lock(offset, wait=True):
            self._held = offset
        # Another process may have stored it while this one waited.
        known = self._store.lookup(key)
        if known is not None:
            self.release()
        return known

    def notes(self, key: Digest) -> tuple[Note, ...]:
        """Return the notes of a result."""
        return self._store.notes(key)

    def remember(self, key: Digest, result: Digest, notes: Iterable[Note] = ()) -> None:
        """Store a result and release its key."""
        self._store.remember(key, result, notes)
        self.release()

    def get(self, result: Digest) -> Blob | None:
        """Return a blob."""
        return self._store.get(result)

    def put(self, result: Digest, blob: Blob) -> None:
        """Store a blob."""
        self._store.put(result, blob)

    def release(self) -> None:
        """Release the key of a stage that failed."""
        self._unlock(self._held)
        self._held = None

    def close(self) -> None:
        """Release everything and close the lock file; the next lock opens it again."""
        self.release()
        if self._file is not None and self._process == os.getpid():
            self._file.close()
        self._file = None

    def claim(self, content: str) -> bool:
        """Claim the evaluation of a model, and return whether no other process has claimed it.

        A claim lasts as long as the process: other workers may have started their trial before they could know that
        the model has been evaluated.

        Args:
            content: Hexadecimal digest of the model.
        """
        return self._lock(_claim_offset(content), wait=False)

    def release_claim(self, content: str) -> None:
        """Release a model whose evaluation failed."""
        self._unlock(_claim_offset(content))

    def _lock(self, offset: int, *, wait: bool) -> bool:
        """Lock a byte and return whether this process holds it."""
        if self._file is None or self._process != os.getpid():
            # POSIX locks belong to a process and are not inherited, so a forked worker opens the file again.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(self._path, "ab")
            self._process = os.getpid()
        return lock_byte(self._file, offset, wait=wait)

    def _unlock(self, offset: int | None) -> None:
        if offset is not None and self._file is not None and self._process == os.getpid():
            unlock_byte(self._file, offset)


def _claim_offset(content: str) -> int:
    return _CLAIMS + int(content[:15], 16)
