"""A store on disk, shared by processes and sessions, with LRU eviction."""

import errno
import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantry.errors import InternalError, RecipeError, StoreError
from quantry.files import is_leftover, read_regular, require_folder, temporary_name, write_file
from quantry.memo._blob import Blob
from quantry.memo._blob_files import MANIFEST, DamagedBlobError, read_blob, write_blob
from quantry.memo._fingerprint import Digest
from quantry.notes import Note

_USED = "used"


class DirectoryStore:
    """A `Store` in a directory, for any number of threads and processes at once.

    ::

        <path>/
          index/ab/<key>.json            {"result": "<digest>", "notes": [...], "crc32": ...}      key starts with ab
          blobs/cd/<digest>/             digest starts with cd
            manifest.json                bytes and crc32 of every part below
            meta.json                    plain data
            arrays.safetensors           arrays, if any
            files/<name>                 files, if any, e.g. model.onnx
            used                         empty; its modification time is the last use
          temp/                          entries that are being written or deleted right now

    Everything may be inspected, copied and deleted by hand at any time.

    Writing: an entry is written under temp/ and then renamed into place, so readers see all of it or nothing. A killed
    writer only leaves a directory in temp/, which a later writer deletes. Files are not synced to disk:
    after a power cut a file may be truncated; its checksum reveals that, and the result is computed again.

    Reading: every part is checked against its checksum, and damaged blobs are deleted. A blob that is evicted while it
    is being read is either returned complete or reported as missing.

    Eviction: when the blobs exceed the limit, the least recently used ones are deleted until 90 % of it are in use.
    Each process counts the bytes it writes and scans the directory again after writing 1/32 of the limit at most, so
    several concurrent writers can exceed the limit by about that much each. The index is never evicted.

    The constructor does not touch the disk.

    Args:
        path: The directory; created on the first write.
        limit_bytes: Maximum size of all blobs together; 10 GiB by default.
    """

    def __init__(self, path: str | os.PathLike[str], limit_bytes: int = 10 << 30) -> None:
        if limit_bytes <= 0:
            raise RecipeError(f"limit_bytes must be positive; got {limit_bytes}; in DirectoryStore.")
        self.path = Path(path)
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._total_bytes: int | None = None
        self._written_bytes = 0

    def __reduce__(self) -> tuple[type["DirectoryStore"], tuple[Path, int]]:
        """Pickle as the path and the limit, so that worker processes open the same directory."""
        return type(self), (self.path, self.limit_bytes)

    def lookup(self, key: Digest) -> Digest | None:
        """Return the digest of the result remembered under the key, or None.

        Raises:
            StoreError: The directory cannot be read.
        """
        entry = self._index_entry(key)
        return None if entry is None else entry[0]

    def notes(self, key: Digest) -> tuple[Note, ...]:
        """Return the notes remembered under the key.

        Raises:
            StoreError: The directory cannot be read.
        """
        entry = self._index_entry(key)
        return () if entry is None else entry[1]

    def remember(self, key: Digest, result: Digest, notes: Iterable[Note] = ()) -> None:
        """Remember the digest and the notes of a result under a key, replacing an earlier entry.

        Raises:
            StoreError: The directory cannot be written.
        """
        plain = [note.to_plain() for note in notes]
        entry = {"result": result, "notes": plain, "crc32": _index_check(key, result, plain)}
        with self._writing():
            folder = self._folder("index", key[:2])
            write_file(folder / f"{key}.json", json.dumps(entry) + "\n", synced=False)

    def get(self, result: Digest) -> Blob | None:
        """Return a blob, or None if it is missing or damaged. Damaged blobs are deleted.

        Raises:
            StoreError: The directory cannot be read.
        """
        directory = self._blob_directory(result)
        identity = _identity(directory)
        try:
            with self._reading():
                blob = read_blob(directory)
        except DamagedBlobError:
            self._drop(directory, identity)
            return None
        _touch(directory)
        return blob

    def put(self, result: Digest, blob: Blob) -> None:
        """Store a blob and evict the least recently used ones above the limit.

        Raises:
            StoreError: The directory cannot be written. No incomplete entry is left.
        """
        final = self._blob_directory(result)
        identity = _identity(final)
        with self._writing():
            if (final / MANIFEST).exists():
                _touch(final)
                return
            if blob.payload_bytes > self.limit_bytes:
                return
            self._drop(final, identity)
            with self._scratch() as scratch:
                written = scratch / "blob"
                written.mkdir()
                write_blob(written, blob)
                (written / _USED).touch()
                _touch(written)
                self._publish(written, final)

    def _publish(self, written: Path, final: Path) -> None:
        """Make room for a complete blob and move it into place."""
        size = sum(part.stat().st_size for part in written.rglob("*") if part.is_file())
        if size > self.limit_bytes:
            return
        self._make_room(size)
        self._folder("blobs", final.parent.name)
        try:
            with self._lock:
                written.rename(final)
        except OSError as error:
            # Another process stored the same blob first. It may be evicted already, so do not check for it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _folder(self, *names: str) -> Path:
        """Create a folder of the store and return it; none of its parts may be a link out of the store.

        Raises:
            FileKindError: One is a link or a file.
        """
        folder = self.path
        for name in names:
            folder = folder / name
            require_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _index_entry(self, key: Digest) -> tuple[Digest, tuple[Note, ...]] | None:
        try:
            with self._reading():
                entry = json.loads(read_regular(self.path / "index" / key[:2] / f"{key}.json"))
            result, plain = Digest(entry["result"]), entry["notes"]
            if entry["crc32"] != _index_check(key, result, plain):
                return None
            return result, tuple(Note.from_plain(note) for note in plain)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, InternalError):
            # Missing or damaged: the stage runs again and writes a new entry.
            return None

    def _blob_directory(self, result: Digest) -> Path:
        return self.path / "blobs" / result[:2] / result

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, StoreError):
            raise
        except OSError as error:
            raise StoreError(
                f"The store's directory must be readable; reading failed: {error}; at {self.path}. "
                "Fix its permissions, or choose another directory."
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"The store's directory must be writable and the disk must not be full; writing failed: {error}; "
                f"at {self.path}. Free some space, fix the permissions, or choose another directory."
            ) from error

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Provide an empty directory on the same file system and delete it with its contents afterwards."""
        scratch = self._folder("temp") / temporary_name("entry")
        try:
            scratch.mkdir()
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _drop(self, directory: Path, identity: tuple[int, int] | None) -> None:
        """Remove a damaged blob atomically; a read-only store keeps it.

        Args:
            directory: The blob's directory.
            identity: Its identity before it was found to be damaged. An intact blob that another writer put there
                since then has a different identity and stays.
        """
        if identity is None:
            return
        with suppress(OSError), self._scratch() as scratch, self._lock:
            if _identity(directory) != identity:
                return
            dropped = directory.rename(scratch / "dropped")
            # Another process may have stored an intact blob in between. Threads of this process wait for the lock. The
            # content decides: a new directory may have the inode of the one it replaced, and renaming changes its time.
            with suppress(DamagedBlobError):
                read_blob(dropped)
                dropped.rename(directory)

    def _make_room(self, size: int) -> None:
        """Evict blobs so that `size` more bytes stay within the limit."""
        with self._lock:
            total = self._total_bytes
            # A scan of the whole directory costs time, but other processes write too; 1/32 bounds the error.
            if total is None or total + size > self.limit_bytes or self._written_bytes + size > self.limit_bytes // 32:
                _remove_leftovers(self.path / "temp")
                total = _evict(self.path, limit_bytes=self.limit_bytes, needed_bytes=size)
                self._written_bytes = 0
            self._total_bytes = total + size
            self._written_bytes += size


def _index_check(key: Digest, result: Digest, notes: list[Any]) -> int:
    """Return a checksum, so that a flipped bit in an entry does not return the result of another key."""
    return zlib.crc32(json.dumps([key, result, *notes]).encode())


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return what distinguishes a directory from a later one with the same path, or None if there is none."""
    try:
        status = directory.stat()
    except OSError:
        return None
    # Inode numbers are reused as soon as they are free; the time of the last rename differs then.
    return status.st_ino, status.st_ctime_ns


def _touch(directory: Path) -> None:
    # The time is explicit because the kernel's own is as coarse as its clock tick, and many uses fit into one tick.
    now = time.time_ns()
    with suppress(OSError):
        # The time of what a link leads to must not change; Windows cannot tell.
        os.utime(directory / _USED, ns=(now, now), follow_symlinks=os.utime not in os.supports_follow_symlinks)


@dataclass(frozen=True, order=True)
class _StoredBlob:
    """One blob on disk; the least recently used sorts first."""

    used_ns: int
    directory: Path
    bytes_on_disk: int


def _evict(path: Path, *, limit_bytes: int, needed_bytes: int) -> int:
    """Delete the least recently used blobs until `needed_bytes` more fit into 90 % of the limit.

    Nothing is deleted while they fit into the whole limit.

    Args:
        path: The store's directory.
        limit_bytes: Maximum size of all blobs together.
        needed_bytes: How many bytes are about to be added.

    Returns:
        The total size of the remaining blobs in bytes.
    """
    blobs = sorted(_stored_blobs(path / "blobs"))
    total = sum(blob.bytes_on_disk for blob in blobs)
    if total + needed_bytes <= limit_bytes:
        return total
    # Free 10 % more than needed; otherwise a full store would be scanned on every put.
    goal = max(limit_bytes - limit_bytes // 10 - needed_bytes, 0)
    for blob in blobs:
        if total <= goal:
            break
        _delete(blob.directory, path / "temp")
        total -= blob.bytes_on_disk
    return total


def _remove_leftovers(temp: Path) -> None:
    """Delete what killed writers left in the directory of temporary files."""
    for leftover in _entries(temp):
        with suppress(OSError):
            # Writing a long file does not change the time of its directory, so the newest file counts.
            newest = max(entry.stat().st_mtime for entry in (leftover, *leftover.rglob("*")))
            if is_leftover(leftover.name, newest):
                shutil.rmtree(leftover, ignore_errors=True)


def _stored_blobs(blobs: Path) -> Iterator[_StoredBlob]:
    for shard in _entries(blobs):
        for directory in _entries(shard):
            # Other processes evict at the same time; skip a blob that vanishes during the scan.
            with suppress(OSError):
                size = sum(part.stat().st_size for part in directory.rglob("*") if part.is_file())
                yield _StoredBlob(_last_use(directory), directory, size)


def _last_use(directory: Path) -> int:
    try:
        return (directory / _USED).stat().st_mtime_ns
    except FileNotFoundError:
        return directory.stat().st_mtime_ns


def _entries(directory: Path) -> list[Path]:
    try:
        # A link could lead out of the store, where nothing may be deleted.
        return [] if directory.is_symlink() else list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _delete(directory: Path, temp: Path) -> None:
    """Rename a blob away, then delete it: a reader finds all of it or nothing."""
    renamed = temp / temporary_name("evicted")
    with suppress(OSError):
        directory.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)
