"""Separates the samples that a model is calibrated on from those it is judged by."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from quantry.data.calibration_data import CalibrationData, SampleSource


class EverySecond(SampleSource):
    """Every second sample of data.

    Args:
        data: All samples.
        start: 0 takes the first, third and so on, 1 the others.

    Attributes:
        data: All samples.
        start: The first of those taken.
    """

    def __init__(self, data: CalibrationData, start: int) -> None:
        self.data = data
        self.start = start

    @property
    def size(self) -> int | None:
        """Number of samples."""
        whole = self.data.size
        return None if whole is None else (whole + 1 - self.start) // 2

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The files of each sample."""
        return self.data.source.files[: self.data.limit][self.start :: 2]

    def read(self) -> Iterator[object]:
        """Yield the samples."""
        return islice(self.data, self.start, None, 2)


def split_data(data: CalibrationData) -> tuple[CalibrationData, CalibrationData]:
    """Return data to calibrate on and data to judge by, each half of what is given.

    A model that is judged by what it was calibrated on looks better than it is. A single sample serves for both.
    """
    if next(islice(data, 1, None), None) is None:
        return data, data
    return tuple(CalibrationData(EverySecond(data, start), data.inputs) for start in (0, 1))  # type: ignore[return-value]


def undivided(data: CalibrationData) -> CalibrationData:
    """Return the data that were given, of which `split_data` may have taken a part."""
    return undivided(data.source.data) if isinstance(data.source, EverySecond) else data
