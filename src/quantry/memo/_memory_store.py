"""A store that lives as long as the process."""

import json
import threading
from collections import OrderedDict

from quantry.errors import RecipeError
from quantry.memo._blob import Blob
from quantry.memo._digest import Digest


class MemoryStore:
    """A `Store` in memory, shared by the threads of one process.

    `put` copies the arrays, so that whoever made the blob cannot change it later; `get` hands out the copies,
    read-only.

    Args:
        limit_bytes: The most that the blobs may take together; the least recently used go first.

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
        self._index: dict[Digest, Digest] = {}
        self._blobs: OrderedDict[Digest, tuple[Blob, int]] = OrderedDict()
        self._used_bytes = 0

    def lookup(self, key: Digest) -> Digest | None:
        """Return the digest of the result remembered under the key, or None."""
        with self._lock:
            return self._index.get(key)

    def remember(self, key: Digest, result: Digest) -> None:
        """Remember the digest of a result under a key."""
        with self._lock:
            self._index[key] = result

    def get(self, result: Digest) -> Blob | None:
        """Return a blob, or None when it is not here."""
        with self._lock:
            if result not in self._blobs:
                return None
            self._blobs.move_to_end(result)
            kept, _ = self._blobs[result]
        # A new blob copies `meta`, whose lists the caller could change.
        return Blob(kept.meta, kept.arrays, kept.files)

    def put(self, result: Digest, blob: Blob) -> None:
        """Keep a copy of a blob, and drop the least recently used beyond the limit."""
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
