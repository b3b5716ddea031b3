"""Looks after the directory of a `DirectoryStore`: size, eviction, deletion, and a check of every blob."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from quantry.errors import StoreError
from quantry.memo._blob_files import DamagedBlobError, read_blob
from quantry.memo._directory_store import _delete, _evict, _remove_leftovers, _stored_blobs

_PARTS = ("index", "blobs", "temp")


@dataclass(frozen=True)
class StoreUsage:
    """What a store holds.

    Attributes:
        results: Number of remembered results.
        blobs: Number of stored values.
        bytes_on_disk: Their size.
    """

    results: int
    blobs: int
    bytes_on_disk: int


def store_usage(path: str | Path) -> StoreUsage:
    """Return the size of a store; zeros if there is none."""
    folder = Path(path)
    blobs = list(_stored_blobs(folder / "blobs"))
    results = sum(1 for _ in (folder / "index").glob("*/*.json"))
    return StoreUsage(results, len(blobs), sum(blob.bytes_on_disk for blob in blobs))


def prune_store(path: str | Path, limit_bytes: int) -> StoreUsage:
    """Delete the least recently used values until a store is within a limit.

    Args:
        path: The directory.
        limit_bytes: Maximum size of all values together.

    Returns:
        The usage afterwards.
    """
    folder = Path(path)
    _remove_leftovers(folder / "temp")
    # _evict frees 10 % more than needed, so that the next writes do not evict again.
    _evict(folder, limit_bytes=limit_bytes, needed_bytes=0)
    return store_usage(folder)


def clear_store(path: str | Path) -> StoreUsage:
    """Delete everything that a store wrote, and nothing else in the directory.

    Returns:
        What was deleted.

    Raises:
        StoreError: Something could not be deleted.
    """
    folder = Path(path)
    usage = store_usage(folder)
    try:
        for part in _PARTS:
            if (folder / part).exists():
                shutil.rmtree(folder / part)
    except OSError as error:
        raise StoreError(f"the store's directory must be writable, got {error}; at {folder}") from error
    return usage


def verify_store(path: str | Path) -> tuple[Path, ...]:
    """Read every value of a store and delete damaged ones; they are computed again when needed.

    Returns:
        The damaged values, which are deleted.
    """
    folder = Path(path)
    damaged = []
    for blob in list(_stored_blobs(folder / "blobs")):
        try:
            read_blob(blob.directory)
        except (DamagedBlobError, OSError):
            if blob.directory.exists():  # another process may have evicted it
                damaged.append(blob.directory)
                (folder / "temp").mkdir(parents=True, exist_ok=True)
                _delete(blob.directory, folder / "temp")
    return tuple(damaged)
