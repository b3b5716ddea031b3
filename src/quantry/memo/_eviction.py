"""Which blobs of a directory go when there are too many, and what killed writers left."""

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

USED = "used"
_LEFTOVER_SECONDS = 3600.0


@dataclass(frozen=True, order=True)
class _Resident:
    """One blob on disk; the least recently used sorts first."""

    used_ns: int
    directory: Path
    bytes_on_disk: int


def evict(path: Path, *, limit_bytes: int, needed_bytes: int) -> int:
    """Delete the least recently used blobs until `needed_bytes` more fit into nine tenths of the limit.

    Nothing is deleted while they fit into the whole limit.

    Args:
        path: The store's directory.
        limit_bytes: The most that the blobs may take together.
        needed_bytes: What is about to be added.

    Returns:
        The bytes that the blobs take now.
    """
    residents = sorted(_residents(path / "blobs"))
    total = sum(resident.bytes_on_disk for resident in residents)
    if total + needed_bytes <= limit_bytes:
        return total
    # Some room beyond what is needed, so that a full store is not looked through at every put.
    goal = max(limit_bytes - limit_bytes // 10 - needed_bytes, 0)
    for resident in residents:
        if total <= goal:
            break
        _delete(resident.directory, path / "temp")
        total -= resident.bytes_on_disk
    return total


def remove_leftovers(temp: Path) -> None:
    """Delete what killed writers left in the directory of temporary files, once it is an hour old."""
    oldest_kept = time.time() - _LEFTOVER_SECONDS
    for leftover in _entries(temp):
        with suppress(OSError):
            # The newest file counts, because a long write does not move the time of its directory.
            newest = max(entry.stat().st_mtime for entry in (leftover, *leftover.rglob("*")))
            if newest < oldest_kept:
                shutil.rmtree(leftover, ignore_errors=True)


def _residents(blobs: Path) -> Iterator[_Resident]:
    for shard in _entries(blobs):
        for directory in _entries(shard):
            # Other processes evict at the same time: a blob that vanishes under the eye is no longer resident.
            with suppress(OSError):
                size = sum(part.stat().st_size for part in directory.rglob("*") if part.is_file())
                yield _Resident(_last_use(directory), directory, size)


def _last_use(directory: Path) -> int:
    try:
        return (directory / USED).stat().st_mtime_ns
    except FileNotFoundError:
        return directory.stat().st_mtime_ns


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _delete(directory: Path, temp: Path) -> None:
    """Take a blob out of sight in one step, then delete it: a reader finds all of it or nothing."""
    grave = temp / f"evicted-{os.getpid()}-{uuid.uuid4().hex}"
    with suppress(OSError):
        directory.rename(grave)
    shutil.rmtree(grave, ignore_errors=True)
