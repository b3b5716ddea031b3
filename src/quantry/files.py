"""Write files so that readers see all of a file or nothing, and so that nothing outside of its folder is touched.

A file is created under a temporary name in its opened folder, without following links, then synced and renamed. What
already stands under its name is replaced if it is a regular file. A link, pipe, device or folder is refused by name: it
is never written through, and never waited for. Temporary names contain the process that writes, so that what a killed
process left behind is deleted by the next write into the folder.
"""

import errno
import os
import re
import secrets
import socket
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from quantry.errors import FileKindError
from quantry.operating_system import is_running

# Windows has no such flags, and looks up names by their paths.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_OPENS_FOLDERS = {os.open, os.stat, os.rename, os.unlink} <= os.supports_dir_fd

_TEMPORARY = re.compile(r"\..*\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{16}\.part", re.DOTALL)
_LONGEST_STEM = 100  # Names of files have at most 255 bytes.
# A writer on another machine cannot be asked whether it lives. It adds to its file all the time, so an hour is enough.
_LEFTOVER_SECONDS = 3600.0


@contextmanager
def new_file(path: str | os.PathLike[str], *, synced: bool = True) -> Iterator[BinaryIO]:
    """Provide a file to write; it appears under its name, complete, when the block ends without an exception.

    A new file has the permissions of the user's umask, and one that replaces another those of the other.

    Args:
        path: The file, in an existing folder.
        synced: Whether it must survive a power failure; syncing takes milliseconds.

    Raises:
        FileKindError: The path is a link, pipe, device or folder.
        OSError: The file cannot be written.
    """
    target = Path(path)
    if not target.name:
        raise FileKindError(f"a file to read or write must be a regular file, got a folder; at {target}")
    with _open_folder(target.parent) as folder:
        replaced = folder.status(target.name)
        _require_kind(replaced, target)
        folder.remove_leftovers()
        temporary = temporary_name(target.name)
        try:
            with os.fdopen(folder.create(temporary), "wb") as file:
                yield file
                file.flush()
                if replaced is not None and hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), stat.S_IMODE(replaced.st_mode) & 0o777)
                if synced:
                    os.fsync(file.fileno())
            folder.rename(temporary, target.name)
        except BaseException:
            with suppress(OSError):
                folder.remove(temporary)
            raise
        if synced:
            folder.sync()


def write_file(
    path: str | os.PathLike[str], content: str | bytes | Iterable[bytes | memoryview], *, synced: bool = True
) -> None:
    """Write a file with `new_file`.

    Args:
        path: The file, in an existing folder.
        content: Text, bytes, or bytes in pieces.
        synced: Whether it must survive a power failure.

    Raises:
        FileKindError: The path is a link, pipe, device or folder.
        OSError: The file cannot be written; the old content stays.
    """
    encoded = content.encode() if isinstance(content, str) else content
    with new_file(path, synced=synced) as file:
        file.writelines([encoded] if isinstance(encoded, bytes) else encoded)


def open_regular(path: str | os.PathLike[str], mode: Literal["rb", "ab"] = "rb") -> BinaryIO:
    """Open a regular file for reading, or for appending, which creates it.

    Args:
        path: The file.
        mode: ``rb`` or ``ab``.

    Raises:
        FileKindError: The path is a link, pipe, device or folder, or would be appended to under two names.
        OSError: The file cannot be opened.
    """
    appends = mode == "ab"
    require_regular(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT if appends else os.O_RDONLY
    try:
        descriptor = os.open(path, flags | _NO_LINKS | _NO_WAITING | _BINARY, 0o666)
    except OSError as error:
        # What was planted after the check: a link, or a pipe that nobody reads.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            require_regular(path)
        raise
    file = os.fdopen(descriptor, mode)
    try:
        status = os.fstat(descriptor)
        _require_kind(status, Path(path))
        if appends and status.st_nlink > 1:
            raise FileKindError(f"a file to append to must have one name, got a hard link; at {path}")
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file.

    Raises:
        FileKindError: The path is a link, pipe, device or folder.
        OSError: The file cannot be read.
    """
    with open_regular(path) as file:
        return file.read()


def require_regular(path: str | os.PathLike[str]) -> None:
    """Check that a path is a regular file, or free.

    Raises:
        FileKindError: It is a link, pipe, device or folder.
    """
    with suppress(FileNotFoundError):
        _require_kind(os.lstat(path), Path(path))


def require_folder(path: Path) -> None:
    """Check that a path is a folder, or free.

    Raises:
        FileKindError: It is a link or a file.
    """
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise FileKindError(f"a folder must not be {_kind(status)}; at {path}")


def temporary_name(stem: str) -> str:
    """Return a new name for something that this process writes and then renames; `is_leftover` recognizes it.

    Args:
        stem: The final name.
    """
    return f".{stem[:_LONGEST_STEM]}.{_host()}-{os.getpid()}-{secrets.token_hex(8)}.part"


def is_leftover(name: str, changed: float) -> bool:
    """Return whether a temporary file or folder belongs to a process that died, as far as that is known.

    Args:
        name: Its name.
        changed: When it was changed last, in seconds since the epoch.
    """
    match = _TEMPORARY.fullmatch(name)
    if match is not None and match["host"] == _host() and not is_running(int(match["process"])):
        return True
    return changed < time.time() - _LEFTOVER_SECONDS


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _require_kind(status: os.stat_result | None, path: Path) -> None:
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise FileKindError(f"a file to read or write must be a regular file, got {_kind(status)}; at {path}")


def _kind(status: os.stat_result) -> str:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    kinds[stat.S_IFREG] = "a file"
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


class _Folder:
    """A folder in which names are looked up; where possible in the opened one, whatever its path leads to by then.

    Args:
        path: The folder.
        descriptor: The opened folder; None looks up names by their paths.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self._path = path
        self._descriptor = descriptor

    def create(self, name: str) -> int:
        """Return the descriptor of a new file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS | _BINARY
        return os.open(self._place(name), flags, 0o666, dir_fd=self._descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """Return what a name stands for, without following links; None if it is free."""
        try:
            return os.stat(self._place(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def rename(self, name: str, final: str) -> None:
        """Give a file its final name, and replace what has that name."""
        places = self._place(name), self._place(final)
        os.replace(*places, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Delete a file."""
        os.unlink(self._place(name), dir_fd=self._descriptor)

    def remove_leftovers(self) -> None:
        """Delete the temporary files of processes that died."""
        for name in os.listdir(self._path if self._descriptor is None else self._descriptor):  # noqa: PTH208 - opened
            with suppress(OSError):
                status = self.status(name) if _TEMPORARY.fullmatch(name) else None
                if status is not None and stat.S_ISREG(status.st_mode) and is_leftover(name, status.st_mtime):
                    self.remove(name)

    def sync(self) -> None:
        """Let renames survive a power failure, where the file system can."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.fsync(self._descriptor)

    def _place(self, name: str) -> str | Path:
        return self._path / name if self._descriptor is None else name


@contextmanager
def _open_folder(path: Path) -> Iterator[_Folder]:
    if not _OPENS_FOLDERS:
        yield _Folder(path, None)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _Folder(path, descriptor)
    finally:
        os.close(descriptor)
