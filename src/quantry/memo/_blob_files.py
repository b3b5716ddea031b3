"""The files of one blob in a directory store: a manifest with checksums, JSON, arrays and raw files.

Arrays use the safetensors format (https://huggingface.co/docs/safetensors): an 8-byte little-endian length, a JSON
header, and the elements of all arrays. It is implemented here because the safetensors package copies every array twice
to write it and once to read it, and writes non-contiguous arrays incorrectly. tests/memo compares the two
implementations in both directions.
"""

import errno
import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.errors import FileKindError, InternalError
from quantry.files import read_regular
from quantry.memo._blob import STORED_DTYPES, Blob

MANIFEST = "manifest.json"
_FORMAT = 1
_META = "meta.json"
_ARRAYS = "arrays.safetensors"
_FILES = "files"

# Large enough to make the cost of calls negligible, small enough that a chunk is still in the processor's cache when it
# is written after its checksum was computed.
_CHUNK_BYTES = 1 << 20

# A part is missing or on a bad sector. Other errors, such as missing permissions, do not mean that the blob is damaged;
# a part that is no regular file does.
_DAMAGE_ERRNOS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ESTALE, errno.EINVAL, errno.ENAMETOOLONG}
)

_DTYPES = {tag: np.dtype(name).newbyteorder("<") for name, tag in STORED_DTYPES.items()}


class DamagedBlobError(Exception):
    """A part of a blob is missing, truncated or changed. Handled inside the store."""


def write_blob(directory: Path, blob: Blob) -> None:
    """Write a blob into an existing empty directory.

    Raises:
        OSError: The directory cannot be written or the disk is full.
    """
    parts = {_META: _write(directory / _META, [json.dumps(dict(blob.meta)).encode()])}
    if blob.arrays:
        parts[_ARRAYS] = _write(directory / _ARRAYS, tensor_chunks(blob.arrays))
    if blob.files:
        (directory / _FILES).mkdir()
    for name, data in blob.files.items():
        parts[f"{_FILES}/{name}"] = _write(directory / _FILES / name, [data])
    manifest = {"format": _FORMAT, "parts": parts}
    _write(directory / MANIFEST, [(json.dumps(manifest, indent=2) + "\n").encode()])


def read_blob(directory: Path) -> Blob:
    """Return the blob in a directory, after checking every part against its checksum.

    Raises:
        DamagedBlobError: A part is missing, truncated or changed.
        OSError: The directory cannot be read for another reason, such as permissions or too many open files.
    """
    try:
        manifest = json.loads(read_regular(directory / MANIFEST))
        if manifest["format"] != _FORMAT:
            raise DamagedBlobError(f"format {manifest['format']!r}")
        parts = {name: _read(directory / name, entry) for name, entry in manifest["parts"].items()}
        return Blob(
            meta=json.loads(parts.pop(_META)),
            arrays=read_tensors(parts.pop(_ARRAYS)) if _ARRAYS in parts else {},
            files={name.removeprefix(f"{_FILES}/"): data for name, data in parts.items()},
        )
    except OSError as error:
        if error.errno not in _DAMAGE_ERRNOS and not isinstance(error, FileKindError):
            raise
        raise DamagedBlobError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, InternalError) as error:
        # A flipped bit in the manifest can cause any of these: invalid JSON, a missing field, another type.
        raise DamagedBlobError(str(error)) from error


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, int]:
    size, check = 0, 0
    with path.open("xb") as stream:
        for piece in _pieces(chunks):
            check = zlib.crc32(piece, check)
            size += stream.write(piece)
    return {"bytes": size, "crc32": check}


def _pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]


def _read(path: Path, entry: dict[str, Any]) -> bytes:
    data = read_regular(path)
    if len(data) != entry["bytes"] or zlib.crc32(data) != entry["crc32"]:
        raise DamagedBlobError(f"{path.name}: checksum")
    return data


def tensor_chunks(arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file in chunks, without copying the arrays.

    Args:
        arrays: Names to C-contiguous arrays of any shape, as in `Blob.arrays`.
    """
    # Wide elements first keeps every array aligned. The header keeps the order of names.
    laid_out = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    starts: dict[str, int] = {}
    end = 0
    for name in laid_out:
        starts[name], end = end, end + arrays[name].nbytes
    header = {
        name: {
            "dtype": STORED_DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [starts[name], starts[name] + array.nbytes],
        }
        for name, array in arrays.items()
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    padded = text + b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(padded)) + padded
    for name in laid_out:
        array = arrays[name]
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data


def read_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in the bytes of a safetensors file, as read-only views of those bytes.

    Raises:
        ValueError, KeyError, TypeError, struct.error: The bytes are not a safetensors file.
    """
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(
            data,
            dtype=_DTYPES[entry["dtype"]],
            count=math.prod(entry["shape"]),
            # An empty array may start at the very end of the data, an offset that frombuffer rejects.
            offset=8 + length + entry["data_offsets"][0] if math.prod(entry["shape"]) else 0,
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }
