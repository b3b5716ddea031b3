import dataclasses
import hashlib
import math
import struct
import threading
from collections import OrderedDict, UserDict
from collections.abc import Mapping
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantry.errors import InternalError
from quantry.memo import Blob, Digest, fingerprint, fingerprint_array, fingerprint_file


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Paint(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    LOW = "low"


class Rights(Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0
    label: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Place:
    x: float
    y: float = 0.0


@dataclasses.dataclass(frozen=True)
class RenamedPoint:
    fingerprint_tag: ClassVar[str] = "Point"
    y: float
    x: float


@dataclasses.dataclass(frozen=True)
class ChildOfRenamed(RenamedPoint):
    pass


@dataclasses.dataclass
class Thawed:
    x: int = 1


@dataclasses.dataclass(frozen=True)
class Holder:
    items: Any


class Known:
    def __init__(self, digest: Any) -> None:
        self.digest = digest

    def __fingerprint__(self) -> Any:
        return self.digest


class Stored:
    def __init__(self, blob: Blob | None) -> None:
        self.blob = blob

    def to_blob(self) -> Blob | None:
        return self.blob


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([Colour.RED, Colour.BLUE, Paint.RED, Level.LOW, Word.LOW]),
    st.builds(PurePosixPath, st.text("ab/", max_size=3)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=2)), inner, max_size=3),
        st.frozensets(st.one_of(st.integers(), st.text(max_size=2)), max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Place, inner, inner),
    ),
    max_leaves=6,
)


def model(value: Any) -> Any:
    """An independent definition of equal contents: nested tuples that compare as the contract says."""
    name = type(value).__name__
    if isinstance(value, Enum):
        return (name, value.name)
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else struct.pack(">d", value))
    if isinstance(value, list | tuple):
        return (name, tuple(model(item) for item in value))
    if isinstance(value, dict):
        return ("dict", frozenset((model(key), model(item)) for key, item in value.items()))
    if isinstance(value, frozenset):
        return ("set", frozenset(model(item) for item in value))
    if dataclasses.is_dataclass(value):
        return (name, model(value.x), model(value.y))
    return (name, value)


@given(values, values)
def test_equal_digests_exactly_for_equal_contents(first: Any, second: Any) -> None:
    assert (fingerprint(first) == fingerprint(second)) == (model(first) == model(second))


@given(st.lists(values, min_size=2, max_size=8))
def test_nearby_values_have_different_digests(items: list[Any]) -> None:
    variants = [items, tuple(items), items[1:], items[:-1], [items], [items[0], items[1:]], [*items, None], [*items, 0]]
    assert len({fingerprint(variant) for variant in variants}) == len({model(variant) for variant in variants})


@given(st.dictionaries(st.text(max_size=3), values, max_size=5), st.randoms(use_true_random=False))
def test_fingerprint_ignores_order_and_type_of_a_mapping(mapping: dict[str, Any], random: Any) -> None:
    items = list(mapping.items())
    random.shuffle(items)
    kinds: list[Mapping[str, Any]] = [dict(items), OrderedDict(items), MappingProxyType(dict(items)), UserDict(items)]
    assert {fingerprint(kind) for kind in kinds} == {fingerprint(mapping)}


def test_fingerprint_ignores_order_and_type_of_a_set() -> None:
    assert fingerprint({"a", "b", 1}) == fingerprint(frozenset([1, "b", "a"]))
    assert fingerprint({1}) != fingerprint((1,))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        (0, None),
        ("", b""),
        ("a", Path("a")),
        ("ab", ["a", "b"]),
        (("a", "bc"), ("ab", "c")),
        ((1,), [1]),
        ({}, set()),
        (Level.LOW, 1),
        (Word.LOW, "low"),
        (Colour.RED, Paint.RED),
        (Rights.READ | Rights.WRITE, Rights.READ),
        (np.int64(1), 1),
        (np.float64(1), 1.0),
        (np.float32(1), np.float64(1)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.zeros(4, np.int8), np.zeros(1, np.int32)),
        (np.zeros(1), np.zeros(())),
        (np.array([0.0]), np.array([-0.0])),
        (np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, np.float16)),
        (np.zeros(2, ml_dtypes.int4), np.zeros(2, np.int8)),
        (fingerprint(1), str(fingerprint(1))),
        (fingerprint(1), 1),
        (Point(1, 2), Place(1, 2)),
        (Point(1, 2), Point(2, 1)),
        (Point(1, 2), {"x": 1, "y": 2}),
    ],
    ids=str,
)
def test_different_contents_have_different_digests(first: Any, second: Any) -> None:
    assert fingerprint(first) != fingerprint(second)


def test_all_nan_have_one_digest() -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    assert fingerprint(other_nan) == fingerprint(float("nan"))


def test_numpy_scalar_equals_the_array_without_dimensions() -> None:
    assert fingerprint(np.float32(1.5)) == fingerprint(np.array(1.5, np.float32))


def test_fields_with_compare_false_are_ignored() -> None:
    assert fingerprint(Point(1, 2, label="a")) == fingerprint(Point(1, 2, label="b"))


def test_fingerprint_tag_replaces_the_class_name() -> None:
    assert fingerprint(RenamedPoint(x=1.0, y=2.0)) == fingerprint(Point(1.0, 2.0))


def test_fingerprint_tag_is_not_inherited() -> None:
    assert fingerprint(ChildOfRenamed(x=1.0, y=2.0)) != fingerprint(RenamedPoint(x=1.0, y=2.0))


def test_fingerprint_method_returns_the_digest() -> None:
    digest = fingerprint("anything")
    assert fingerprint(Known(digest)) == digest
    assert fingerprint([Known(digest)]) != fingerprint([digest])


def test_storable_has_the_digest_of_its_blob() -> None:
    blob = Blob(meta={"a": 1})
    assert fingerprint(Stored(blob)) == blob.digest() == fingerprint(blob)
    assert fingerprint((Stored(blob),)) == fingerprint((Known(blob.digest()),))


def test_storable_without_blob_and_fingerprint_is_rejected() -> None:
    with pytest.raises(InternalError, match=r"Stored has neither; at options\.items\."):
        fingerprint(Holder(Stored(None)), "options")


def test_fingerprint_method_must_return_a_digest() -> None:
    with pytest.raises(InternalError, match=r"Known\.__fingerprint__ must return a Digest; got str"):
        fingerprint(Known("00"))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (object(), r"got builtins\.object; at options\."),
        (
            Holder([1, 2, Holder({"foo": threading.Lock()})]),
            r"got _thread\.lock; at options\.items\[2\]\.items\['foo'\]\.",
        ),
        (Thawed(), r"got .*Thawed; at options\."),
        ({"f": len}, r"got builtins\.builtin_function_or_method; at options\['f'\]\."),
        ((Point,), r"got builtins\.type; at options\[0\]\."),
        (1 + 2j, r"got builtins\.complex"),
        ([np.array([object()])], r"got dtype object; at options\[0\]\."),
        (np.zeros(2, [("a", "i4"), ("b", "f4")]), r"got dtype \[\('a'.*at options\."),
        ({(1, Thawed): 1}, r"got builtins\.type; at options key .*\[1\]\."),
    ],
    ids=lambda item: str(item)[:20],
)
def test_values_without_content_are_rejected_with_their_position(value: Any, complaint: str) -> None:
    with pytest.raises(InternalError, match=complaint):
        fingerprint(value, "options")


def test_value_that_contains_itself_is_rejected() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InternalError, match="must not contain itself"):
        fingerprint(loop)


@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
def test_fingerprint_ignores_layout_and_byte_order_of_an_array(array: np.ndarray) -> None:
    wide = np.repeat(array[..., None], 2, axis=-1)
    same = [
        np.asfortranarray(array).reshape(array.shape),
        wide[..., 0],
        array.astype(array.dtype.newbyteorder(">")),
        array.copy(),
    ]
    assert {fingerprint_array(other) for other in same} == {fingerprint_array(array)} == {fingerprint(array)}


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn], ids=str
)
def test_arrays_of_ml_dtypes_differ_by_dtype_and_elements(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert fingerprint(array) == fingerprint(array.T.copy().T)
    assert fingerprint(array) != fingerprint(array.T)
    assert fingerprint(array) != fingerprint(array + array)


def test_fingerprint_of_a_file_depends_on_its_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content)
    assert (
        fingerprint_file(tmp_path / "a") == fingerprint_file(str(tmp_path / "b")) == hashlib.sha256(content).hexdigest()
    )
    with pytest.raises(FileNotFoundError):
        fingerprint_file(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "ab", "A" * 64, "g" * 64, "a" * 33, "../" * 20])
def test_digest_rejects_other_text(text: str) -> None:
    with pytest.raises(InternalError, match="hexadecimal"):
        Digest(text)


GOLDEN = [
    (None, "7b9391eedc0818e5"),
    (True, "aa25353b609dd9a2"),
    (0, "c5e1f3f450f9a4cc"),
    (-1, "63538ea9fddfe0c1"),
    (2**70, "ebdeb1a01a660e74"),
    (0.0, "c6003f3b0c4acec4"),
    (-0.0, "2542e60f0b72b845"),
    (float("nan"), "62a96d2faec39c32"),
    (1.5, "b2d08ddddd55d066"),
    ("", "a73f244756f45dd6"),
    ("été", "eb4397fa9be5eab5"),
    (b"bytes", "2020a85c7c45a017"),
    (Colour.RED, "392ee02e3c5c3c62"),
    (Level.LOW, "988d7baf759414cf"),
    (Rights.READ | Rights.WRITE, "b2edbf4674da323c"),
    (PurePosixPath("a/b"), "53ad8c586784312b"),
    ((), "b6cbdfea0a1f38ff"),
    ((1, "a"), "14d7589dadc21cb7"),
    ([1, "a"], "05618a822e637653"),
    ({}, "6500e60d13d6f5e1"),
    ({"b": 1, "a": [2.0]}, "9f25a22d55154e02"),
    ({3, 1, 2}, "faa3d8328123527c"),
    (Point(1.0, 2.0, label="ignored"), "319ac08ce2442306"),
    (Digest("ab" * 32), "1278f5231a7b6090"),
    (Known(Digest("ab" * 32)), "abababababababab"),
    ([Known(Digest("ab" * 32))], "562393d9745e46eb"),
    (np.float32(1.5), "6b48c6814ea99563"),
    (np.arange(6, dtype=np.int16).reshape(2, 3), "f607e55344bc73fb"),
    (np.zeros((0, 2), np.float64), "4f24fbb371516f5d"),
    (np.array([1, 2], ml_dtypes.bfloat16), "8565605394f08d63"),
    ((np.ones(2, bool), None), "060c0f32d45e8f92"),
    (Blob({"a": [1, None]}, {"x": np.ones(2)}, {"f.txt": b"text"}), "bd90bbfb16ac3973"),
]


@pytest.mark.parametrize(("value", "start"), GOLDEN, ids=lambda item: repr(item)[:30])
def test_scheme_is_that_of_existing_stores(value: Any, start: str) -> None:
    """A failure here means that all results in existing stores become unknown; change the scheme only on purpose."""
    assert fingerprint(value).startswith(start)


def test_scheme_is_the_hash_of_bytes_with_tags_and_lengths() -> None:
    number = b"i" + (1).to_bytes(8, "little") + b"1"
    text = b"s" + (2).to_bytes(8, "little") + b"ab"
    written = b"quantry value 1\n" + b"T" + (2).to_bytes(8, "little") + number + text
    assert fingerprint((1, "ab")) == hashlib.sha256(written).hexdigest()
