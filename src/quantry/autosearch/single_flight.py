"""A store for several processes of which only one computes what all of them need."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from quantry.memo import Blob, Digest, Store

_CLAIMS = 1 << 60
"""Places of claims are beyond those of keys."""


class SingleFlightStore:
    """Wraps a store: whoever finds a result unknown holds its key until it is computed, and others wait for it.

    Without this, workers that begin together would all run the same float pass. A process holds one key at a time, so
    they cannot wait for each other in a circle, and one that dies lets go of its key. A model is claimed in the same
    way by whoever judges it; nobody waits for a claim.

    Args:
        store: The store that is shared.
        lock_file: A file whose byte ranges stand for keys; made when missing.
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
        """Return the digest of the result, waiting while another process computes it; None is the caller's to fill."""
        known = self._store.lookup(key)
        if known is not None:
            return known
        self.release()
        self._take(int(key[:15], 16))
        known = self._store.lookup(key)
        if known is not None:
            self.release()
        return known

    def notes(self, key: Digest) -> tuple[str, ...]:
        """Return the notes of a result."""
        return self._store.notes(key)

    def remember(self, key: Digest, result: Digest, notes: Iterable[str] = ()) -> None:
        """Remember a result and let others have it."""
        self._store.remember(key, result, notes)
        self.release()

    def get(self, result: Digest) -> Blob | None:
        """Return a blob."""
        return self._store.get(result)

    def put(self, result: Digest, blob: Blob) -> None:
        """Keep a blob."""
        self._store.put(result, blob)

    def release(self) -> None:
        """Let go of a key whose stage failed."""
        self._unlock(self._held)
        self._held = None

    def claim(self, content: str) -> bool:
        """Say that a model with this content is judged here, and return whether no other process has said so.

        A claim lasts as long as its process: others may have begun before they could hear that the model is judged.

        Args:
            content: A hexadecimal digest.
        """
        return self._lock(_claim_place(content), wait=False)

    def disclaim(self, content: str) -> None:
        """Say that what was claimed could not be judged here."""
        self._unlock(_claim_place(content))

    def _take(self, place: int) -> None:
        if self._lock(place, wait=True):
            self._held = place

    def _lock(self, place: int, *, wait: bool) -> bool:
        """Lock a byte and return whether it is this process's."""
        try:
            import fcntl
        except ImportError:  # Windows: both compute it, which costs time and nothing else.
            return True
        if self._file is None or self._process != os.getpid():
            # Locks belong to a process, and a forked one needs its own.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            self._process = os.getpid()
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except (BlockingIOError, PermissionError):  # systems differ in what they say of a lock that another one has
            return False
        return True

    def _unlock(self, place: int | None) -> None:
        if place is not None and self._file is not None and self._process == os.getpid():
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _claim_place(content: str) -> int:
    return _CLAIMS + int(content[:15], 16)
