"""Digests of values: equal contents, and only those, have equal digests.

A value is first written as bytes in which every item carries a one-letter tag of its type and its length, so that no
two values of different type or structure are written alike; the digest is the hash of those bytes. What is large
(arrays) or has an identity of its own (`__fingerprint__`, storable results) enters as its own digest.
"""

import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum, Flag
from functools import lru_cache
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantry.errors import InternalError
from quantry.memo._digest import Digest, digest_bytes

# Changing how anything is written changes every key in every store: tests/memo holds golden digests.
_VALUE_SCHEME = b"quantry value 1\n"
_ARRAY_SCHEME = b"quantry array 1\n"

_Encoder: TypeAlias = Callable[[Any, str], bytes]
_Digester: TypeAlias = Callable[[Any, str], Digest]


def fingerprint(value: object, name: str = "value") -> Digest:
    """Return the digest of a value's content.

    Accepted are None, bool, int, float, str, bytes, Enum members, paths (by their text), tuples, lists, mappings and
    sets (in any order), frozen dataclasses, numpy arrays and scalars, `Digest`, any object with a method
    ``__fingerprint__() -> Digest`` (`Handle` is one), any `Storable`, and nestings of these.

    - A float counts by its bits: -0.0 is not 0.0; all NaN are one. 1, 1.0, True and numpy.int64(1) are four values.
    - A frozen dataclass counts by the name of its class and its fields by name, without those declared with
      ``compare=False``. A ``fingerprint_tag: ClassVar[str]`` in the class's own body stands for the class's name, so
      that renaming the class need not invalidate stores.
    - What has a content digest of its own (``__fingerprint__``, else the digest of its blob) counts as that digest,
      so a `Handle` and the value it stands for are the same.

    Args:
        value: The value.
        name: What to call the value in an error message.

    Raises:
        InternalError: Something inside has no defined content; the message gives its type and its place.

    Example:
        >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
        True
    """
    try:
        cls: Any = type(value)
        digester = _digester_of(cls)
        if digester is not None:
            return digester(value, name)
        return digest_bytes(_VALUE_SCHEME, _encode(value, name))
    except RecursionError as error:
        raise InternalError(
            f"A value in a key must not contain itself; got a {type(value).__qualname__} that does; at {name}."
        ) from error


def fingerprint_array(array: NDArray[Any]) -> Digest:
    """Return the digest of an array's dtype, shape and elements; memory layout and byte order do not count.

    Args:
        array: Array of any shape, of any dtype of fixed size, those of ml_dtypes included.

    Raises:
        InternalError: The dtype holds Python objects or has fields.
    """
    return _digest_array(array, "array")


def _digest_array(value: Any, where: str) -> Digest:
    array = np.asarray(value)
    dtype = array.dtype
    if dtype.hasobject or dtype.names is not None:
        raise InternalError(
            f"An array in a key must have elements of one fixed-size type; got dtype {dtype}; at {where}."
        )
    if dtype.byteorder == ">":
        array = array.astype(dtype.newbyteorder("<"))
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    header = _atom(b"t", dtype.name.encode()) + _many(b"i", (struct.pack("<Q", size) for size in array.shape))
    return digest_bytes(_ARRAY_SCHEME, header, flat.data)


def _digest_own(value: Any, where: str) -> Digest:
    digest = value.__fingerprint__()
    if not isinstance(digest, Digest):
        raise InternalError(
            f"{type(value).__qualname__}.__fingerprint__ must return a Digest; "
            f"got {type(digest).__qualname__}; at {where}."
        )
    return digest


def _digest_blob(value: Any, where: str) -> Digest:
    blob = value.to_blob()
    if blob is None:
        raise InternalError(
            f"A result without a blob must have __fingerprint__; {type(value).__qualname__} has neither; at {where}."
        )
    return _digest_own(blob, where)


@lru_cache(maxsize=1024)
def _digester_of(cls: type) -> _Digester | None:
    if hasattr(cls, "__fingerprint__"):
        return _digest_own
    if hasattr(cls, "to_blob"):
        return _digest_blob
    return _digest_array if issubclass(cls, np.ndarray | np.generic) else None


_pack_length = struct.Struct("<Q").pack


def _atom(tag: bytes, payload: bytes) -> bytes:
    return tag + _pack_length(len(payload)) + payload


def _many(tag: bytes, items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return tag + _pack_length(len(parts)) + b"".join(parts)


def _text(text: str) -> bytes:
    # A lone surrogate is legal in file names on POSIX, and UTF-8 proper cannot write it.
    return _atom(b"s", text.encode("utf-8", "surrogatepass"))


# Names of fields, which stand in every entry of a long list.
_short_text = lru_cache(maxsize=1024)(_text)

# Most of what is in a large value are these; looking them up first makes a digest of it in half the time.
_LEAVES: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _value: b"N",
    bool: lambda value: _atom(b"b", b"1" if value else b"0"),
    int: lambda value: _atom(b"i", format(value, "x").encode()),
    float: lambda value: _atom(b"f", b"nan" if value != value else struct.pack("<d", value)),  # noqa: PLR0124 - NaN
    str: _text,
    bytes: lambda value: _atom(b"y", value),
}


def _encode(value: object, where: str) -> bytes:
    cls: Any = type(value)
    leaf = _LEAVES.get(cls)
    if leaf is not None:
        return leaf(value)
    digester = _digester_of(cls)
    if digester is not None:
        return _atom(b"#", digester(value, where).encode())
    encoder = _encoder_of(cls)
    return encoder(value, where)


def _encode_enum(value: Enum, _where: str) -> bytes:
    # A combination of flags has no name of its own that is sure to stay.
    member = format(value.value, "x") if isinstance(value, Flag) else value.name
    return _many(b"E", (_text(type(value).__qualname__), _text(member)))


def _encode_tuple(value: Sequence[object], where: str) -> bytes:
    return _many(b"T", _items(value, where))


def _encode_list(value: Sequence[object], where: str) -> bytes:
    return _many(b"L", _items(value, where))


def _items(value: Sequence[object], where: str) -> Iterable[bytes]:
    # The name of a place is made only for what may have to be refused.
    for index, item in enumerate(value):
        leaf = _LEAVES.get(type(item))
        yield _encode(item, f"{where}[{index}]") if leaf is None else leaf(item)


def _encode_mapping(value: Mapping[object, object], where: str) -> bytes:
    pairs = []
    for key, item in value.items():
        name = _short_text(key) if type(key) is str else _encode(key, f"{where} key {key!r}")
        leaf = _LEAVES.get(type(item))
        pairs.append((name, _encode(item, f"{where}[{key!r}]") if leaf is None else leaf(item)))
    return _many(b"M", (key + item for key, item in sorted(pairs)))


def _encode_set(value: Set[object], where: str) -> bytes:
    return _many(b"S", sorted(_encode(item, f"{where} item {item!r}") for item in value))


def _encode_dataclass(value: Any, where: str) -> bytes:
    cls = type(value)
    # Only the class's own tag: an inherited one would make a subclass and its base the same value.
    tag = vars(cls).get("fingerprint_tag", cls.__qualname__)
    names = sorted(field.name for field in dataclasses.fields(cls) if field.compare)
    fields = (_short_text(name) + _encode(getattr(value, name), f"{where}.{name}") for name in names)
    return _many(b"O", (_text(tag), *fields))


def _placeless(encode: Callable[[Any], bytes]) -> _Encoder:
    return lambda value, _where: encode(value)


def _refuse(value: object, where: str) -> bytes:
    raise InternalError(
        "What enters a key must have a defined content (plain values, tuples, mappings, frozen dataclasses, arrays, "
        f"or an object with __fingerprint__); got {type(value).__module__}.{type(value).__qualname__}; at {where}."
    )


# The first match counts: a Digest is a str, an IntEnum an int, a bool an int.
_ENCODERS: tuple[tuple[type, _Encoder], ...] = (
    (Digest, lambda value, _where: _atom(b"d", value.encode())),
    (Enum, _encode_enum),
    *((leaf, _placeless(encode)) for leaf, encode in _LEAVES.items()),
    (PurePath, lambda value, _where: b"P" + _text(str(value))),
    (tuple, _encode_tuple),
    (list, _encode_list),
    (Mapping, _encode_mapping),
    (Set, _encode_set),
)


@lru_cache(maxsize=1024)
def _encoder_of(cls: type) -> _Encoder:
    parameters = getattr(cls, "__dataclass_params__", None)
    # Before the table, because a dataclass that is also a Mapping or a tuple still counts by its class.
    if parameters is not None and not issubclass(cls, Enum):
        return _encode_dataclass if parameters.frozen else _refuse
    return next((encoder for accepted, encoder in _ENCODERS if issubclass(cls, accepted)), _refuse)
