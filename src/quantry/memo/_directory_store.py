"""A store on disk, shared by processes and sessions."""

import errno
import json
import os
import shutil
import threading
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quantry.errors import InternalError, RecipeError, StoreError
from quantry.memo._blob import Blob
from quantry.memo._blob_directory import MANIFEST, DamagedBlobError, read_blob, write_blob
from quantry.memo._digest import Digest
from quantry.memo._eviction import USED, evict, remove_leftovers


class DirectoryStore:
    """A `Store` in a directory, for any number of threads and processes at once.

    ::

        <path>/
          index/ab/<key>.json            {"result": "<digest>", "crc32": ...}      key begins with ab
          blobs/cd/<digest>/             digest begins with cd
            manifest.json                bytes and crc32 of every part below
            meta.json                    plain data
            arrays.safetensors           arrays, if any
            files/<name>                 files, if any, e.g. model.onnx
            used                         empty; its modification time is the last use
          temp/                          what is being written or deleted at this moment

    Everything may be looked at, copied and deleted by hand at any time.

    Writing: an entry is written under temp/ and then renamed to its place, so whoever looks sees all of it or nothing.
    A writer that is killed leaves only a directory in temp/, which a later writer deletes after an hour. Nothing is
    flushed to the disk on purpose: after a power cut a file may be cut short, which its checksum shows, and what it
    held is computed again.

    Reading: every part is compared with its checksum. A damaged blob is dropped. A blob that is evicted while it is
    read is either read whole or reported missing.

    Eviction: when blobs take more than the limit, the least recently used are deleted until nine tenths of it are in
    use. Each process counts what it writes and looks at the whole directory again before it has written a
    thirty-second of the limit, so several writers together may pass the limit by about that much each. The index is not
    evicted.

    The constructor touches nothing on disk.

    Args:
        path: The directory; made when something is first written.
        limit_bytes: The most that the blobs may take together, 10 GiB unless said otherwise.
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
        """Travel to other processes as the path of the directory."""
        return type(self), (self.path, self.limit_bytes)

    def lookup(self, key: Digest) -> Digest | None:
        """Return the digest of the result remembered under the key, or None.

        Raises:
            StoreError: The directory cannot be read.
        """
        try:
            with self._reading():
                entry = json.loads(self._index_file(key).read_bytes())
            result = Digest(entry["result"])
            return result if entry["crc32"] == _index_check(key, result) else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, InternalError):
            # Missing, or damaged: the stage runs again and writes it anew.
            return None

    def remember(self, key: Digest, result: Digest) -> None:
        """Remember the digest of a result under a key, in place of an earlier one.

        Raises:
            StoreError: The directory cannot be written.
        """
        entry = {"result": result, "crc32": _index_check(key, result)}
        with self._writing(), self._scratch() as scratch:
            written, final = scratch / "entry.json", self._index_file(key)
            written.write_text(json.dumps(entry) + "\n", encoding="utf-8")
            final.parent.mkdir(parents=True, exist_ok=True)
            written.replace(final)

    def get(self, result: Digest) -> Blob | None:
        """Return a blob, or None when it is missing or damaged; a damaged one is dropped.

        Raises:
            StoreError: The directory cannot be read.
        """
        directory = self._blob_directory(result)
        seen = _identity(directory)
        try:
            with self._reading():
                blob = read_blob(directory)
        except DamagedBlobError:
            self._drop(directory, seen)
            return None
        _touch(directory)
        return blob

    def put(self, result: Digest, blob: Blob) -> None:
        """Keep a blob, and delete the least recently used beyond the limit.

        Raises:
            StoreError: The directory cannot be written; nothing half-written stays.
        """
        final = self._blob_directory(result)
        seen = _identity(final)
        with self._writing():
            if (final / MANIFEST).exists():
                _touch(final)
                return
            if blob.payload_bytes > self.limit_bytes:
                return
            self._drop(final, seen)
            with self._scratch() as scratch:
                written = scratch / "blob"
                written.mkdir()
                write_blob(written, blob)
                (written / USED).touch()
                _touch(written)
                self._publish(written, final)

    def _publish(self, written: Path, final: Path) -> None:
        """Make room for a blob that is written, and move it to its place."""
        size = sum(part.stat().st_size for part in written.rglob("*") if part.is_file())
        if size > self.limit_bytes:
            return
        self._make_room(size)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._lock:
                written.rename(final)
        except OSError as error:
            # Another process kept the same blob first. Whether it is still there says nothing: it may be evicted.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _index_file(self, key: Digest) -> Path:
        return self.path / "index" / key[:2] / f"{key}.json"

    def _blob_directory(self, result: Digest) -> Path:
        return self.path / "blobs" / result[:2] / result

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"The store's directory must be readable; reading failed: {error}; at {self.path}. "
                "Give the right to read it, or choose another directory."
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"The store's directory must be writable and the disk must have room; writing failed: {error}; "
                f"at {self.path}. Free some space, give the right to write, or choose another directory."
            ) from error

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Lend an own empty directory on the same file system, and delete it with whatever is left in it."""
        scratch = self.path / "temp" / f"{os.getpid()}-{uuid.uuid4().hex}"
        try:
            scratch.mkdir(parents=True)
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _drop(self, directory: Path, seen: tuple[int, int] | None) -> None:
        """Take a damaged blob out of sight in one step; a store that may only be read keeps it.

        Args:
            directory: Where the blob is.
            seen: The identity of the directory from before it was found damaged. A whole blob that another writer put
                there since then has another one, and stays.
        """
        if seen is None:
            return
        with suppress(OSError), self._scratch() as scratch, self._lock:
            if _identity(directory) != seen:
                return
            dropped = directory.rename(scratch / "dropped")
            # Another process may have put a whole one there in between; threads of this one wait for the lock.
            if dropped.stat().st_ino != seen[0]:
                dropped.rename(directory)

    def _make_room(self, size: int) -> None:
        """Evict so that `size` more bytes stay within the limit."""
        with self._lock:
            total = self._total_bytes
            if total is None or total + size > self.limit_bytes or self._written_bytes + size > self.limit_bytes // 32:
                remove_leftovers(self.path / "temp")
                total = evict(self.path, limit_bytes=self.limit_bytes, needed_bytes=size)
                self._written_bytes = 0
            self._total_bytes = total + size
            self._written_bytes += size


def _index_check(key: Digest, result: Digest) -> int:
    """A changed character in an entry must not send the reader to a result that is not this key's."""
    return zlib.crc32(f"{key} {result}".encode())


def _identity(directory: Path) -> tuple[int, int] | None:
    """What tells a directory from a later one in its place, or None where there is none."""
    try:
        status = directory.stat()
    except OSError:
        return None
    # A number is given again as soon as it is free; the time of the last rename is not.
    return status.st_ino, status.st_ctime_ns


def _touch(directory: Path) -> None:
    # The time is given because the kernel's own is as coarse as its clock tick, within which many uses fit.
    now = time.time_ns()
    with suppress(OSError):
        os.utime(directory / USED, ns=(now, now))
