"""The store protocol and the store that lives in memory."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from quantry.errors import RecipeError
from quantry.memo._blob import Blob
from quantry.memo._fingerprint import Digest
from quantry.notes import Note


class Store(Protocol):
    """Keeps results in two levels: key -> digest of the result and notes -> blob.

    The index (first level) is small and is never evicted, so a chain of stages whose inputs did not change reads no
    blob at all. Blobs (second level) may vanish at any time: evicted, damaged or deleted by hand. A missing blob is
    computed again.

    Notes are in the index because they belong to one call: two calls may return equal contents with different notes,
    and the blob of that content is stored once.

    A store is safe to use from many threads. It owns its contents: changing a blob after `put` or after `get` does not
    change the stored one. `quantry.testing.store_suite.StoreSuite` tests an implementation against this contract.

    Five methods instead of the usual three, because each level needs a way in and a way out, and most readers of the
    index do not need the notes.
    """

    def lookup(self, key: Digest) -> Digest | None:
        """Return the digest of the result remembered under the key, or None. Reads no blob."""
        ...

    def notes(self, key: Digest) -> tuple[Note, ...]:
        """Return the notes remembered under the key; empty if there are none or the key is unknown."""
        ...

    def remember(self, key: Digest, result: Digest, notes: Iterable[Note] = ()) -> None:
        """Remember the digest and the notes of a result under a key, replacing an earlier entry.

        Raises:
            StoreError: The store cannot be written.
        """
        ...

    def get(self, result: Digest) -> Blob | None:
        """Return a blob, or None if it is missing or damaged. Damaged blobs are deleted."""
        ...

    def put(self, result: Digest, blob: Blob) -> None:
        """Store a blob without its notes; does nothing if there is one under this digest already.

        Above the store's limit, the blobs that were least recently put or read are evicted. A single blob larger than
        the limit is not stored.

        Raises:
            StoreError: The store cannot be written. No incomplete entry is left.
        """
        ...


class MemoryStore:
    """A `Store` in memory, shared by the threads of one process.

    `put` copies the arrays, so that later changes by the caller have no effect; `get` returns the copies, read-only.

    Args:
        limit_bytes: Maximum size of all blobs together, with LRU eviction.

    Example:
        >>> store = MemoryStore()
        >>> store.put(Digest("ab" * 32), Blob(meta={"answer": 42}))
        >>> store.get(Digest("ab" * 32)).meta["answer"]
        42
    """

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        if limit_bytes <= 0:
            raise RecipeError(f"limit_bytes must be positive; got {limit_bytes}; in MemoryStore.")
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._index: dict[Digest, tuple[Digest, tuple[Note, ...]]] = {}
        self._blobs: OrderedDict[Digest, tuple[Blob, int]] = OrderedDict()
        self._used_bytes = 0

    def lookup(self, key: Digest) -> Digest | None:
        """Return the digest of the result remembered under the key, or None."""
        with self._lock:
            entry = self._index.get(key)
        return None if entry is None else entry[0]

    def notes(self, key: Digest) -> tuple[Note, ...]:
        """Return the notes remembered under the key."""
        with self._lock:
            entry = self._index.get(key)
        return () if entry is None else entry[1]

    def remember(self, key: Digest, result: Digest, notes: Iterable[Note] = ()) -> None:
        """Remember the digest and the notes of a result under a key."""
        with self._lock:
            self._index[key] = result, tuple(notes)

    def get(self, result: Digest) -> Blob | None:
        """Return a blob, or None if it is missing."""
        with self._lock:
            if result not in self._blobs:
                return None
            self._blobs.move_to_end(result)
            stored, _ = self._blobs[result]
        # A new blob copies `meta`, whose lists the caller could change.
        return Blob(stored.meta, stored.arrays, stored.files)

    def put(self, result: Digest, blob: Blob) -> None:
        """Store a copy of a blob and evict the least recently used ones above the limit."""
        size = blob.payload_bytes + len(json.dumps(dict(blob.meta)))
        if size > self.limit_bytes:
            return
        copy = Blob(blob.meta, {name: array.copy() for name, array in blob.arrays.items()}, blob.files)
        with self._lock:
            if result in self._blobs:
                self._blobs.move_to_end(result)
                return
            self._blobs[result] = (copy, size)
            self._used_bytes += size
            while self._used_bytes > self.limit_bytes:
                _, (_, freed) = self._blobs.popitem(last=False)
                self._used_bytes -= freed
