"""The stored form of one result, and the protocol of values that have one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantry.errors import InternalError
from quantry.memo._fingerprint import Digest, digest_bytes, fingerprint, fingerprint_array
from quantry.notes import Note

# None, bool, int, float, str, lists of JSON and mappings of str to JSON. A precise recursive type would make every
# `from_blob` narrow each item before use; `Blob` checks the contents instead.
JSON: TypeAlias = Any

# Valid on every file system, and never a path.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

# `str(value)` calls the subclass's own `__str__`, which returns the member's name for an enum of strings. The methods
# of the builtin class return the plain value.
_EXACT: tuple[tuple[type, Callable[[Any], JSON]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)

_LEAVES = frozenset((type(None), bool, int, float, str))

STORED_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "bool": "BOOL",
        "int8": "I8",
        "uint8": "U8",
        "int16": "I16",
        "uint16": "U16",
        "float16": "F16",
        "int32": "I32",
        "uint32": "U32",
        "float32": "F32",
        "int64": "I64",
        "uint64": "U64",
        "float64": "F64",
        "complex64": "C64",
    }
)
"""The dtypes that a blob can hold, with their names in the safetensors format."""


@dataclass(frozen=True, eq=False)
class Blob:
    """The stored form of one result: plain data, arrays and files. Equal if the contents are equal.

    The constructor normalizes the contents to the form that every store returns: tuples in `meta` become lists, arrays
    become C-contiguous, native-endian and read-only. Arrays are copied only if they must be, so do not change an array
    after it is in a blob.

    Attributes:
        meta: Names to JSON values; NaN and infinities are accepted.
        arrays: Names to arrays of any shape and any dtype in `STORED_DTYPES`.
        files: Names to contents. A name is a plain ASCII file name; two names must differ by more than case.
        notes: What the user should know. They are not part of the digest, and a store keeps them with the call's key
            rather than with the blob.

    Raises:
        InternalError: Something cannot be stored; the message gives its type and position.

    Example:
        >>> Blob(meta={"count": 3}, files={"note.txt": b"hello"}) == Blob({"count": 3}, files={"note.txt": b"hello"})
        True
    """

    meta: Mapping[str, JSON] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        arrays = {_array_name(name): _stored_array(array, name) for name, array in self.arrays.items()}
        object.__setattr__(self, "meta", MappingProxyType(_plain(self.meta, "Blob.meta")))
        object.__setattr__(self, "arrays", MappingProxyType(arrays))
        object.__setattr__(self, "files", MappingProxyType(_plain_files(self.files)))
        object.__setattr__(self, "notes", tuple(self.notes))

    def digest(self) -> Digest:
        """Return the digest of the contents, independent of the order of names and of the notes."""
        arrays = {name: fingerprint_array(array) for name, array in self.arrays.items()}
        files = {name: digest_bytes(data) for name, data in self.files.items()}
        return fingerprint(("blob", self.meta, arrays, files), "Blob")

    @property
    def payload_bytes(self) -> int:
        """Total size of all arrays and files in bytes."""
        return sum(array.nbytes for array in self.arrays.values()) + sum(len(data) for data in self.files.values())

    def __fingerprint__(self) -> Digest:
        return self.digest()

    def __eq__(self, other: object) -> bool:
        return self.digest() == other.digest() if isinstance(other, Blob) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())


class Storable(Protocol):
    """A value that can be written as a `Blob` and read back.

    A value that was read back must be equivalent to the original: every stage returns the same result for both. Values
    are frozen; nothing changes one after construction.

    A class may also have ``__fingerprint__(self) -> Digest``, the digest of its content; the default is the digest of
    its blob.

    A class may have a field ``notes: tuple[Note, ...]`` (declared with ``compare=False``): what the user should know,
    which is not part of its identity. `to_blob` passes them as `Blob.notes`, which no digest covers. Because stages are
    not run again when only the notes of an argument differ, a stage returns its own notes and never those of its
    arguments.
    """

    def to_blob(self) -> Blob | None:
        """Return the blob, or None if the value is too large to store.

        A class that returns None must have ``__fingerprint__``. Its values are computed again when they are needed.
        """
        ...

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` wrote. The blob's arrays are read-only."""
        ...


def _plain(value: Any, label: str) -> JSON:
    """Copy a JSON value, replacing instances of subclasses by the builtin types."""
    if type(value) in _LEAVES:
        return value
    # The text of a position is built only for items that may be rejected: large values have many leaves.
    if isinstance(value, Mapping):
        return {
            _key(key, label): item if type(item) in _LEAVES else _plain(item, f"{label}[{key!r}]")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            item if type(item) in _LEAVES else _plain(item, f"{label}[{index}]") for index, item in enumerate(value)
        ]
    for builtin, exact in _EXACT:
        if isinstance(value, builtin):
            return exact(value)
    raise InternalError(
        f"A blob's meta must be JSON (None, bool, int, float, str, list, mapping); "
        f"got {type(value).__module__}.{type(value).__qualname__}; at {label}."
    )


def _key(key: object, label: str) -> str:
    if type(key) is str:
        return key
    if not isinstance(key, str):
        raise InternalError(f"Keys in a blob's meta must be str; got {key!r} of {type(key).__qualname__}; at {label}.")
    return str.__str__(key)


def _array_name(name: str) -> str:
    # The only name that the safetensors format reserves.
    if not isinstance(name, str) or name == "__metadata__":
        raise InternalError(
            f"The name of an array must be a str other than '__metadata__'; got {name!r}; in Blob.arrays."
        )
    return name


def _stored_array(array: NDArray[Any], name: str) -> NDArray[Any]:
    plain = np.asarray(array)
    if plain.dtype.name not in STORED_DTYPES:
        raise InternalError(
            f"An array in a blob must be of dtype {', '.join(STORED_DTYPES)}; "
            f"got {plain.dtype}; at Blob.arrays[{name!r}]."
        )
    native = plain.astype(plain.dtype.newbyteorder("="), order="C", copy=False).view()
    native.setflags(write=False)
    return native


def _plain_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    folded = {name.casefold() for name in files}
    if len(folded) < len(files):
        raise InternalError(f"File names must differ by more than case; got {sorted(files)}; in Blob.files.")
    for name in files:
        if _FILE_NAME.fullmatch(name) is None:
            raise InternalError(
                f"A file in a blob must have a plain ASCII file name, no path; got {name!r}; in Blob.files."
            )
    return {name: bytes(data) for name, data in files.items()}
