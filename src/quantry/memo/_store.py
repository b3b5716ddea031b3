"""Where results are kept."""

from typing import Protocol

from quantry.memo._blob import Blob
from quantry.memo._digest import Digest


class Store(Protocol):
    """Keeps results in two levels: key -> digest of the result -> blob.

    The index (first level) is small and is never evicted, so a chain of stages whose inputs did not change needs no
    blob at all. Blobs (second level) may vanish at any time: evicted, damaged, deleted by hand. Whoever finds one gone
    computes it again.

    A store is safe to use from many threads. It owns what it keeps: changing what was put or what was got changes
    nothing inside. `quantry.testing.store_suite.StoreSuite` holds a store to this contract.

    Four methods instead of the usual three, because each level needs a way in and a way out.
    """

    def lookup(self, key: Digest) -> Digest | None:
        """Return the digest of the result remembered under the key, or None. Reads no blob."""
        ...

    def remember(self, key: Digest, result: Digest) -> None:
        """Remember the digest of a result under a key, in place of an earlier one.

        Raises:
            StoreError: The store cannot be written.
        """
        ...

    def get(self, result: Digest) -> Blob | None:
        """Return a blob, or None when it is missing or damaged; a damaged one is dropped."""
        ...

    def put(self, result: Digest, blob: Blob) -> None:
        """Keep a blob; one that is kept already stays as it is.

        When the store's limit is passed, the blobs least recently put or got go. A blob larger than the limit by
        itself is not kept.

        Raises:
            StoreError: The store cannot be written; nothing half-written stays.
        """
        ...
