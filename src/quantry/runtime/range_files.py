"""Ranges of tensors in the file format of onnxruntime's calibration."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quantry.errors import DataError
from quantry.files import write_file


class StoredRanges(NamedTuple):
    """What a file holds.

    Attributes:
        method: Name of the calibration method.
        ranges: Smallest and largest value by tensor.
        smooth: Whether SmoothQuant was on.
    """

    method: str
    ranges: Mapping[str, tuple[float, float]]
    smooth: bool


def save_ranges(path: Path, stored: StoredRanges) -> None:
    """Write ranges."""
    calibrate: Any = _calibrate()
    method = calibrate.CalibrationMethod[stored.method]
    data = {
        name: calibrate.TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))
        for name, (low, high) in stored.ranges.items()
    }
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        written = Path(folder) / "ranges.json"
        calibrate.save_tensors_data(calibrate.TensorsData(method, data), written, smooth_quant=stored.smooth)
        write_file(path, written.read_bytes())


def load_ranges(path: Path) -> StoredRanges:
    """Return the ranges of a file.

    Raises:
        DataError: It is no such file.
    """
    calibrate: Any = _calibrate()
    try:
        loaded = calibrate.load_tensors_data(path)
        smooth = bool(json.loads(path.read_text()).get("smooth_quant"))
        ranges = {name: (float(data.lowest), float(data.highest)) for name, data in loaded.data.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"a file of ranges must be one that calibration wrote, got {error}; at {path}") from error
    return StoredRanges(loaded.calibration_method.name, ranges, smooth)


def _calibrate() -> Any:
    from onnxruntime.quantization import calibrate

    return calibrate
