"""calibration.txt: which samples the models of a search were calibrated on."""

from quantry.autosearch.data_split import EverySecond
from quantry.observe import CalibrationData


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
