"""What a kind of calibration data must offer: samples again and again, in the same order."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from quantry.memo import Digest


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
