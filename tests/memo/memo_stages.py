"""Small stages and values for the tests of the memo."""

import dataclasses
from typing import Self

import numpy as np

from quantry.memo import (
    Blob,
    Digest,
    Handle,
    Memo,
    MemoryStore,
    fingerprint,
    stage,
)


@dataclasses.dataclass(frozen=True)
class Numbers:
    data: np.ndarray

    def to_blob(self) -> Blob | None:
        return Blob(arrays={"data": self.data})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        return cls(blob.arrays["data"])


@dataclasses.dataclass(frozen=True)
class Bulky(Numbers):
    """Too large to store."""

    def to_blob(self) -> Blob | None:
        return None

    def __fingerprint__(self) -> Digest:
        return fingerprint(self.data)


@dataclasses.dataclass(frozen=True)
class Forgetful(Numbers):
    """Changes its value when it is read back."""

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        return cls(blob.arrays["data"] + 1)


@stage(name="count", version=1)
def count(size: int, start: int = 0) -> Numbers:
    """Count from a start."""
    return Numbers(np.arange(start, start + size, dtype=np.float64))


@stage(name="scale", version=1)
def scale(numbers: Numbers, *, by: float) -> Numbers:
    return Numbers(numbers.data * by)


@stage(name="total", version=1)
def total(*parts: Numbers, **named: Numbers) -> Numbers:
    return Numbers(np.array([sum(part.data.sum() for part in (*parts, *named.values()))]))


@stage(name="inflate", version=1)
def inflate(numbers: Numbers) -> Bulky:
    return Bulky(np.repeat(numbers.data, 3))


@stage(name="shift", version=1, stored=False)
def shift(numbers: Numbers) -> Numbers:
    return Numbers(numbers.data + 1)


class CountingStore(MemoryStore):
    """Counts how often blobs are read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0

    def get(self, result: Digest) -> Blob | None:
        self.gets += 1
        return super().get(result)


def chain(memo: Memo, size: int = 4, by: float = 2.0) -> Handle[Numbers]:
    return memo.run(total, memo.run(scale, memo.run(count, size), by=by))
