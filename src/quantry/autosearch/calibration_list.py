"""calibration.txt: which samples the models of a search were calibrated on."""

import io
import zipfile

import numpy as np

from quantry.autosearch.data_split import EverySecond, undivided
from quantry.autosearch.output_directory import OutputDirectory
from quantry.data.arrays import StackedSource
from quantry.data.calibration_data import CalibrationData


def write_calibration(directory: OutputDirectory, data: CalibrationData) -> None:
    """Write which samples calibrate, in a form that `quantry quantize --data` takes.

    calibration.txt lists them. Where they are a part of an array they have no files, and calibration.npz holds them.

    Args:
        directory: The folder of the search.
        data: The calibration data.

    Raises:
        StoreError: The disk is full or may not be written.
    """
    lines = "".join(f"{line}\n" for line in calibration_lines(data))
    directory.write(directory.calibration, lines.encode())
    if not isinstance(data.source, EverySecond) or not isinstance(undivided(data).source, StackedSource):
        return
    samples = list(data)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name in samples[0]:
            # Not with savez: an input may be called like one of its parameters.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.stack([sample[name] for sample in samples]), allow_pickle=False)
    directory.write(directory.calibration.with_suffix(".npz"), written.getvalue())


def calibration_lines(data: CalibrationData) -> list[str]:
    """Return a line for each calibration sample.

    It holds the paths of the sample's files, with tabs between them; for data that are not in files of their own, the
    number of the sample in what was given, from 0.

    Args:
        data: The calibration data.
    """
    source = data.source
    if isinstance(source, EverySecond):
        lines = calibration_lines(source.data)[source.start :: 2]
    elif source.files:
        lines = ["\t".join(map(str, files)) for files in source.files]
    else:
        size = source.size if source.size is not None else sum(1 for _ in source.read())
        lines = [f"sample {index}" for index in range(size)]
    return lines[: data.limit]
