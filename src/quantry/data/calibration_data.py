"""What a kind of calibration data must offer: samples again and again, in the same order.

Calibration data in one form, whatever the user brought.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import count, islice, repeat
from pathlib import Path

from quantry.data.conform import Sample, Signatures, conform
from quantry.errors import DataError
from quantry.memo import Digest, fingerprint


class SampleSource(ABC):
    """Samples that can be read repeatedly, always the same and in the same order.

    A subclass yields raw samples; `CalibrationData` checks each against the model. Reading may happen in another
    thread than construction, but never in two threads at once.
    """

    @abstractmethod
    def read(self) -> Iterator[object]:
        """Yield the samples from the first on, each in any form that `conform` accepts."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of samples, or None while it is not known."""

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The files of each sample; empty where samples have no files of their own."""
        return ()

    def digest(self, limit: int | None) -> Digest | None:  # noqa: ARG002 - the default knows no shorter way
        """Return the digest of the content of the first ``limit`` samples where it is cheaper than reading them."""
        return None


class CalibrationData:
    """Samples ready to feed: checked, re-iterable, identified by their content.

    The first sample is checked on construction, so that data which do not fit fail before any work; each later one is
    checked when it is read.

    Attributes:
        source: Where the samples come from.
        inputs: The inputs of the model they are checked against.
        limit: At most so many samples are read; None reads all.
    """

    def __init__(self, source: SampleSource, inputs: Signatures, limit: int | None = None) -> None:
        self.source = source
        self.inputs = inputs
        self.limit = limit
        if next(iter(self), None) is None:
            raise DataError(
                "calibration data must hold at least one sample, got none; what can be read only once, such as a "
                "generator, may have been used up already: make a new one"
            )

    def __iter__(self) -> Iterator[Sample]:
        # A map keeps no hold of the last sample while the next one is made, as the variables of a loop would.
        return map(conform, islice(self.source.read(), self.limit), repeat(self.inputs), count())

    @property
    def size(self) -> int | None:
        """Number of samples, or None while it is not known without reading them."""
        size = self.source.size
        if size is None or self.limit is None:
            return size
        return min(size, self.limit)

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError("the number of samples is not known before they are read")
        return self.size

    def take(self, count: int) -> "CalibrationData":
        """Return the first ``count`` samples, or all where there are fewer.

        Raises:
            DataError: If ``count`` is not positive.
        """
        if count < 1:
            raise DataError(f"take() must leave at least one sample, got {count!r}; CalibrationData.take")
        return CalibrationData(self.source, self.inputs, count if self.limit is None else min(count, self.limit))

    def __fingerprint__(self) -> Digest:
        """Return the digest of the samples' content: equal samples are equal data, wherever they came from."""
        return self._digest

    @cached_property
    def _digest(self) -> Digest:
        return self.source.digest(self.limit) or fingerprint(tuple(fingerprint(sample) for sample in self))
