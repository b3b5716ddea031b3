"""Calibration and evaluation data of a search: splitting them, listing them, and searches that need none."""

import io
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.space import AnySpace, example_recipe, spaces_of
from quantry.data.arrays import StackedSource
from quantry.data.calibration_data import CalibrationData, SampleSource
from quantry.data.random_data import RandomData
from quantry.data.subset import Subset
from quantry.errors import DataError


class EverySecond(SampleSource):
    """Every second sample of some data.

    Args:
        data: All samples.
        start: 0 takes the first, third and so on, 1 the others.

    Attributes:
        data: All samples.
        start: Index of the first sample taken.
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
    """Return calibration data and evaluation data, each half of the given data.

    Scores on the calibration data itself would be too optimistic. A single sample serves as both.
    """
    if next(islice(data, 1, None), None) is None:
        return data, data
    return tuple(CalibrationData(EverySecond(data, start), data.inputs) for start in (0, 1))  # type: ignore[return-value]


def undivided(data: CalibrationData) -> CalibrationData:
    """Return the data that some data are a part of."""
    return undivided(data.source.data) if isinstance(data.source, EverySecond | Subset) else data


def require_data(data: Any, evaluator: Any, space: AnySpace) -> Any:
    """Return the data; if none were given and none are needed, random samples that only show the model's inputs.

    Args:
        data: Calibration data as the user gave them.
        evaluator: The evaluator as the user gave it.
        space: The search space.

    Raises:
        DataError: There are no data, but trials would be calibrated or evaluated on them.
    """
    if data is not None:
        return data
    if evaluator is None or isinstance(evaluator, str) or _needs_calibration(space):
        raise DataError(
            "a search must be given data for calibration, and for evaluation if there is no evaluator, got none; give "
            "data, or --data on the command line; quantry.data.RandomData() gives random samples"
        )
    return RandomData()


def _needs_calibration(space: AnySpace) -> bool:
    recipe = example_recipe(spaces_of(space))
    calibrated = not recipe.plan.weights_only and recipe.plan.activation.dtype.has_scale
    return calibrated or bool(recipe.tune.steps) or recipe.mix.mixed is not None or recipe.equalize.smooth is not None


def write_calibration_list(directory: OutputDirectory, data: CalibrationData) -> None:
    """Write which samples were used for calibration, in a form that ``quantry quantize --data`` takes.

    calibration.txt lists them. Samples that are part of an array have no files; calibration.npz holds those.

    Args:
        directory: The output directory.
        data: The calibration data.

    Raises:
        StoreError: The disk is full or not writable.
    """
    lines = "".join(f"{line}\n" for line in calibration_lines(data))
    directory.write(directory.calibration, lines.encode())
    whole = undivided(data)
    if whole is data or not isinstance(whole.source, StackedSource):
        return
    samples = list(data)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name in samples[0]:
            # Not numpy.savez: an input may have the name of one of its parameters, such as "file".
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.stack([sample[name] for sample in samples]), allow_pickle=False)
    directory.write(directory.calibration.with_suffix(".npz"), written.getvalue())


def calibration_lines(data: CalibrationData) -> list[str]:
    """Return one line per calibration sample: the paths of its files, separated by tabs.

    Samples without files of their own are listed by their index in the given data, from 0.

    Args:
        data: The calibration data.
    """
    source = data.source
    if isinstance(source, EverySecond):
        lines = calibration_lines(source.data)[source.start :: 2]
    elif isinstance(source, Subset):
        whole = calibration_lines(source.data)
        lines = [whole[index] for index in source.indices]
    elif source.files:
        lines = ["\t".join(map(str, files)) for files in source.files]
    else:
        size = source.size if source.size is not None else sum(1 for _ in source.read())
        lines = [f"sample {index}" for index in range(size)]
    return lines[: data.limit]
