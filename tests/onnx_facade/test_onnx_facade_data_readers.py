"""Data readers."""

from pathlib import Path

import numpy as np
import pytest
from facade_models import Reader, cnn, samples

from quantry.errors import DataError
from quantry.onnx import (
    CachedDataReader,
    CalibrationDataReader,
    Config,
    ModelQuantizer,
    PathDataReader,
    RandomDataReader,
)


class Two(CalibrationDataReader):
    def __init__(self) -> None:
        self._rest = iter(samples(2))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rest, None)


def test_reader_is_iterable() -> None:
    assert len(list(Two())) == 2


def test_cached_reader_can_be_rewound() -> None:
    reader = CachedDataReader(Reader(), data_size=3)
    assert len(reader) == 3
    assert len(list(iter(reader.get_next, None))) == 3
    assert reader.get_next() is None
    reader.reset_iter()
    np.testing.assert_array_equal(reader.get_next()["image"], samples()[0]["image"])  # type: ignore[index]
    assert len(list(reader)) == 3
    assert reader[1] is list(reader)[1]


def test_cached_reader_can_quantize_twice() -> None:
    reader = CachedDataReader(Reader())
    first = ModelQuantizer(Config()).quantize_model(cnn(), None, reader)
    reader.reset_iter()
    assert ModelQuantizer(Config()).quantize_model(cnn(), None, reader) == first


def test_exhausted_reader_raises() -> None:
    with pytest.raises(DataError, match="samples left"):
        CachedDataReader(Reader([]))


def test_random_reader_has_one_sample_of_shape_and_range() -> None:
    reader = RandomDataReader(cnn(), {"image": [4, 3, 8, 8]}, {"image": (2.0, 3.0)})
    sample = reader.get_next()
    assert sample is not None
    assert sample["image"].shape == (4, 3, 8, 8)
    assert 2 <= sample["image"].min() <= sample["image"].max() <= 3
    assert reader.get_next() is None


def test_random_reader_replaces_dynamic_axes_and_is_deterministic() -> None:
    first, second = (RandomDataReader(cnn()).get_next() for _ in range(2))
    assert first is not None
    assert second is not None
    assert first["image"].shape == (1, 3, 8, 8)
    np.testing.assert_array_equal(first["image"], second["image"])


@pytest.mark.parametrize("reader", [RandomDataReader, PathDataReader])
def test_unknown_input_is_an_error_with_the_nearest_spelling(reader: type, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'image'"):
        reader(cnn(), *([tmp_path] if reader is PathDataReader else []), input_shape={"images": [1, 3, 8, 8]})


def test_path_reader_reads_and_reshapes_arrays(tmp_path: Path) -> None:
    for index, sample in enumerate(samples(3)):
        np.save(tmp_path / f"{index}.npy", sample["image"])
    reader = PathDataReader(cnn(), tmp_path)
    assert len(reader) == 3
    shaped = PathDataReader(cnn(), tmp_path, {"image": (1, 6, 8, 8)}).get_next()
    assert shaped is not None
    assert shaped["image"].shape == (1, 6, 8, 8)
    with pytest.raises(DataError, match="input_shape"):
        PathDataReader(cnn(), tmp_path, {"image": (5, 6, 8, 8)})
