"""Calibration data: `SampleSource`, the interface of every kind of data, and `CalibrationData`, what stages read."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import count, islice, repeat
from pathlib import Path

from quantry.data.conform import Sample, Signatures, conform
from quantry.errors import DataError
from quantry.memo import Digest, fingerprint


class SampleSource(ABC):
    """Samples that can be read repeatedly, always the same ones in the same order.

    A subclass yields raw samples; `CalibrationData` checks each of them against the model. Reading may happen in
    another thread than construction, but never in two threads at once.
    """

    @abstractmethod
    def read(self) -> Iterator[object]:
        """Yield the samples from the beginning, each in any form that `conform` accepts."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of samples, or None if unknown."""

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The files of each sample; empty if samples do not come from files."""
        return ()

    def digest(self, limit: int | None) -> Digest | None:  # noqa: ARG002 - used by subclasses
        """Return the digest of the first ``limit`` samples if that is cheaper than reading them, else None."""
        return None


class CalibrationData:
    """Samples ready to feed: checked, re-iterable, and identified by their content.

    The first sample is checked on construction, so that unsuitable data fails before any work starts; each later one
    is checked when it is read.

    Attributes:
        source: Where the samples come from.
        inputs: The inputs of the model they are checked against.
        limit: Maximum number of samples; None reads all.
    """

    def __init__(self, source: SampleSource, inputs: Signatures, limit: int | None = None) -> None:
        self.source = source
        self.inputs = inputs
        self.limit = limit
        if next(iter(self), None) is None:
            raise DataError(
                "calibration data must contain at least one sample, got none; an iterator that can be read only once, "
                "such as a generator, may be exhausted: create a new one"
            )

    def __iter__(self) -> Iterator[Sample]:
        # A map holds no reference to the previous sample while the next one is created, unlike a loop variable.
        return map(conform, islice(self.source.read(), self.limit), repeat(self.inputs), count())

    @property
    def size(self) -> int | None:
        """Number of samples, or None if it is unknown without reading them."""
        size = self.source.size
        if size is None or self.limit is None:
            return size
        return min(size, self.limit)

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError("the number of samples is unknown before they are read")
        return self.size

    def take(self, count: int) -> "CalibrationData":
        """Return the first ``count`` samples, or all if there are fewer.

        Raises:
            DataError: ``count`` is not positive.
        """
        if count < 1:
            raise DataError(f"count must be at least 1, got {count!r}; in CalibrationData.take")
        return CalibrationData(self.source, self.inputs, count if self.limit is None else min(count, self.limit))

    def __fingerprint__(self) -> Digest:
        """Return the digest of the samples' content: equal samples are equal data, whatever their source."""
        return self._digest

    @cached_property
    def _digest(self) -> Digest:
        return self.source.digest(self.limit) or fingerprint(tuple(fingerprint(sample) for sample in self))
