"""Some samples of given data, evenly spread: to compare on other samples than those a model was fitted to."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from quantry.data.calibration_data import CalibrationData, SampleSource


class Subset(SampleSource):
    """Some samples of some data.

    Args:
        data: All samples.
        indices: Indices of the samples to take.

    Attributes:
        data: All samples.
        indices: Indices of the samples taken, in increasing order.
    """

    def __init__(self, data: CalibrationData, indices: Iterable[int]) -> None:
        self.data = data
        self.indices = tuple(sorted(set(indices)))

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.indices)

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The files of each sample."""
        files = self.data.source.files
        return tuple(files[index] for index in self.indices) if files else ()

    def read(self) -> Iterator[object]:
        """Yield the samples."""
        selected = set(self.indices)
        last = self.indices[-1] + 1 if self.indices else 0
        return (sample for index, sample in enumerate(islice(self.data, last)) if index in selected)


def spread_split(data: CalibrationData, fit: int, held_out: int) -> tuple[CalibrationData, CalibrationData]:
    """Return calibration data and evaluation data of limited size, evenly spread: folders are often sorted by class.

    Args:
        data: All samples. A single one serves as both.
        fit: Maximum number of calibration samples; they are at most half of all.
        held_out: Maximum number of evaluation samples, from the others.
    """
    size = data.size if data.size is not None else sum(1 for _ in data)
    if size < 2:
        return data, data
    first = _spread(range(size), min(fit, (size + 1) // 2))
    remaining = [index for index in range(size) if index not in set(first)]
    second = _spread(remaining, min(held_out, len(remaining)))
    return CalibrationData(Subset(data, first), data.inputs), CalibrationData(Subset(data, second), data.inputs)


def _spread(indices: Sequence[int], count: int) -> list[int]:
    return [indices[place * len(indices) // count] for place in range(count)]
