"""Lists of files as data."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantry.data.calibration_data import CalibrationData
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data
from quantry.errors import DataError
from quantry.graph.float_model import InputSignature

IMAGE = (InputSignature("x", np.dtype(np.float32), (1, 3, 4, 4)),)
TWO = tuple(InputSignature(name, np.dtype(np.float32), (1, 2)) for name in ("a", "b"))


def listed(path: Path, *lines: str) -> Path:
    text = path / "list.txt"
    text.write_text("".join(f"{line}\n" for line in lines))
    return text


def values(data: CalibrationData, name: str) -> list[float]:
    return [float(sample[name].mean()) for sample in data]


def test_images_come_in_the_order_of_the_list(tmp_path: Path) -> None:
    for level in (10, 20, 30):
        Image.new("RGB", (4, 4), (level,) * 3).save(tmp_path / f"{level}.png")
    text = listed(tmp_path, str(tmp_path / "30.png"), "10.png", "")
    assert values(calibration_data(text, IMAGE, ImageOptions(scale=0.1)), "x") == pytest.approx([3.0, 1.0])


def test_arrays_have_a_file_for_each_input_in_a_line(tmp_path: Path) -> None:
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.full((1, 2), number, np.float32))
    data = calibration_data(listed(tmp_path, "0.npy\t1.npy", "2.npy\t3.npy"), TWO)
    assert (values(data, "a"), values(data, "b")) == ([0.0, 2.0], [1.0, 3.0])
    one = (InputSignature("x", np.dtype(np.float32), (1, 2)),)
    assert values(calibration_data(listed(tmp_path, "3.npy", "0.npy"), one), "x") == [3.0, 0.0]
    with pytest.raises(DataError, match="one file per input"):
        calibration_data(listed(tmp_path, "0.npy\t1.npy", "2.npy"), TWO)


@pytest.mark.parametrize(
    ("lines", "message"),
    [((), "got nothing"), (("sample 0",), "must exist, got 'sample 0'"), (("list.txt",), "got .txt")],
)
def test_lists_that_name_no_samples_raise(lines: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        calibration_data(listed(tmp_path, *lines), IMAGE)
