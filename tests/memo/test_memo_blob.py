from enum import Enum, StrEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from quantry.errors import InternalError
from quantry.memo import Blob, fingerprint
from quantry.memo._blob_files import read_tensors, tensor_chunks


class Word(StrEnum):
    ONE = "one"


class OldWord(str, Enum):  # noqa: UP042 - its str() is its name, unlike that of a StrEnum
    ONE = "one"


def test_digest_depends_on_contents_but_not_on_order() -> None:
    first = Blob(meta={"a": 1, "b": 2}, arrays={"x": np.ones(2), "y": np.zeros(2)}, files={"f": b"1", "g": b"2"})
    second = Blob(meta={"b": 2, "a": 1}, arrays={"y": np.zeros(2), "x": np.ones(2)}, files={"g": b"2", "f": b"1"})
    assert first == second
    assert hash(first) == hash(second)
    assert first.digest() == second.digest() == fingerprint(first)


@pytest.mark.parametrize(
    "other",
    [
        Blob(meta={"a": 2}, arrays={"x": np.ones(2)}, files={"f": b"1"}),
        Blob(meta={"a": 1}, arrays={"y": np.ones(2)}, files={"f": b"1"}),
        Blob(meta={"a": 1}, arrays={"x": np.ones(2, np.float32)}, files={"f": b"1"}),
        Blob(meta={"a": 1}, arrays={"x": np.ones(2)}, files={"f": b"2"}),
        Blob(meta={"a": 1}, arrays={"x": np.ones(2)}),
    ],
)
def test_digest_differs_when_any_part_differs(other: Blob) -> None:
    assert Blob(meta={"a": 1}, arrays={"x": np.ones(2)}, files={"f": b"1"}) != other


def test_blob_does_not_equal_other_objects() -> None:
    assert Blob() != "blob"


def test_meta_is_normalized_to_what_json_returns() -> None:
    blob = Blob(meta={"t": (1, (2, 3)), "np": np.float64(0.5), "w": Word.ONE, "o": OldWord.ONE})
    assert blob.meta == {"t": [1, [2, 3]], "np": 0.5, "w": "one", "o": "one"}
    assert [type(blob.meta[name]) for name in ("np", "w", "o")] == [float, str, str]


def test_payload_bytes_adds_arrays_and_files() -> None:
    assert Blob(meta={"a": 1}, arrays={"x": np.ones(3)}, files={"f": b"12"}).payload_bytes == 26


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"meta": {"a": [1, {"b": object()}]}}, r"got builtins\.object; at Blob\.meta\['a'\]\[1\]\['b'\]"),
        ({"meta": {"a": {1: 2}}}, r"Keys .* must be str; got 1 of int; at Blob\.meta\['a'\]"),
        ({"meta": {"a": np.ones(2)}}, r"got numpy\.ndarray"),
        ({"arrays": {"x": np.array(["text"])}}, r"got <U4; at Blob\.arrays\['x'\]"),
        ({"arrays": {"x": np.zeros(2, ml_dtypes.bfloat16)}}, "got bfloat16"),
        ({"arrays": {"__metadata__": np.ones(2)}}, "other than '__metadata__'"),
        ({"files": {"../escape": b""}}, "plain ASCII file name"),
        ({"files": {".hidden": b""}}, "plain ASCII file name"),
        ({"files": {"": b""}}, "plain ASCII file name"),
        ({"files": {"A": b"", "a": b""}}, "more than case"),
    ],
    ids=lambda item: str(item)[:40],
)
def test_contents_that_cannot_be_stored_are_rejected(content: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InternalError, match=complaint):
        Blob(**content)


ARRAYS = {
    "scalar": np.array(3.5),
    "flag": np.array([True, False, True]),
    "empty": np.zeros((0, 3), np.int16),
    "half": np.arange(5, dtype=np.float16),
    "wide": np.arange(6, dtype=np.uint64).reshape(1, 2, 3),
    'odd "é"\n': np.array([-1, 1], np.int8),
}


def test_tensor_file_is_read_by_the_safetensors_package() -> None:
    found = load_safetensors(b"".join(tensor_chunks(ARRAYS)))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def test_tensor_file_of_the_safetensors_package_is_read() -> None:
    found = read_tensors(save_safetensors(ARRAYS, metadata={"written": "elsewhere"}))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
