"""What a stage may return."""

from typing import Protocol, Self

from quantry.memo._blob import Blob


class Storable(Protocol):
    """A value that can be written as a `Blob` and read back.

    A value that was read back must be worth the same as the one that was written: every stage gives the same result
    for both. Values are frozen; nobody changes one after it was made.

    A class may also have ``__fingerprint__(self) -> Digest``, the digest of its content; without it, the digest is
    the blob's.
    """

    def to_blob(self) -> Blob | None:
        """Return the blob, or None when the value is too large to keep.

        None asks for two things: the class has ``__fingerprint__``, and the value is computed again when needed.
        """
        ...

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` wrote. The blob's arrays are read-only."""
        ...
