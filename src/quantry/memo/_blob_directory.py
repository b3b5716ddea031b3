"""One blob as one directory, with a checksum of every part."""

import errno
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from quantry.errors import InternalError
from quantry.memo._blob import Blob
from quantry.memo._tensor_file import read_tensors, tensor_chunks

MANIFEST = "manifest.json"
_FORMAT = 1
_META = "meta.json"
_ARRAYS = "arrays.safetensors"
_FILES = "files"

# Large enough to cost nothing in calls, small enough to be in the cache still when it is written after the checksum.
_CHUNK_BYTES = 1 << 20

# A part is missing, is something else than a file, or lies on a bad sector. Any other error says nothing of the blob.
_DAMAGE_ERRNOS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ESTALE, errno.EINVAL, errno.ENAMETOOLONG}
)


class DamagedBlobError(Exception):
    """A part of a blob is missing, cut or changed. Never leaves the store."""


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
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_blob(directory: Path) -> Blob:
    """Return the blob in a directory, after comparing every part with its checksum.

    Raises:
        DamagedBlobError: A part is missing, cut or changed.
        OSError: The directory cannot be read for a reason outside the blob: rights, too many open files.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if manifest["format"] != _FORMAT:
            raise DamagedBlobError(f"format {manifest['format']!r}")
        parts = {name: _read(directory / name, entry) for name, entry in manifest["parts"].items()}
        return Blob(
            meta=json.loads(parts.pop(_META)),
            arrays=read_tensors(parts.pop(_ARRAYS)) if _ARRAYS in parts else {},
            files={name.removeprefix(f"{_FILES}/"): data for name, data in parts.items()},
        )
    except OSError as error:
        if error.errno not in _DAMAGE_ERRNOS:
            raise
        raise DamagedBlobError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, InternalError) as error:
        # What a flipped bit makes of the manifest: no JSON, a missing field, another type.
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
    data = path.read_bytes()
    if len(data) != entry["bytes"] or zlib.crc32(data) != entry["crc32"]:
        raise DamagedBlobError(f"{path.name}: checksum")
    return data
