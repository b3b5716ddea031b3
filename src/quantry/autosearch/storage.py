"""Where the study of a search is stored: a journal file in its folder, or a database used by one search at a time."""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantry.autosearch.output_directory import OutputDirectory, disk_errors
from quantry.autosearch.samplers import quiet_optuna
from quantry.errors import MissingExtraError, RecipeError, StoreError
from quantry.files import open_regular, read_regular
from quantry.operating_system import is_running

if TYPE_CHECKING:
    import optuna

_LEASE = "lease"
# A lease outlives three missed heartbeats, so that a slow database does not end it.
_LEASE_SECONDS, _HEARTBEAT_SECONDS = 60.0, 15.0


def open_storage(directory: OutputDirectory, url: str | None) -> "optuna.storages.BaseStorage":
    """Return Optuna's storage of the studies.

    Args:
        directory: The output directory.
        url: SQLAlchemy URL of a database, such as ``postgresql+psycopg://user@host/name``; None is the journal in the
            folder.

    Raises:
        MissingExtraError: The database driver is not installed.
        StoreError: The database cannot be reached, or the journal cannot be written.
    """
    import optuna

    with quiet_optuna():
        if url is None:
            # Not a subclass of Optuna's backend: that would import Optuna together with this module.
            backend: Any = JournalFile(directory.journal)
            return optuna.storages.JournalStorage(backend)
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
        except ImportError as error:
            raise MissingExtraError(
                f"the database of a search needs an installed driver, got {error}; install quantry[postgres] "
                "and write postgresql+psycopg://..., or use sqlite:///study.db"
            ) from error
        except Exception as error:
            raise StoreError(
                f"the database of a search must be reachable, got {_root_message(error)}; in {without_password(url)}"
            ) from error


def close_storage(storage: "optuna.storages.BaseStorage") -> None:
    """Close the connections to a database; a journal has none."""
    import optuna

    if isinstance(storage, optuna.storages.RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


def without_password(url: str) -> str:
    """Return a URL without its password."""
    scheme, separator, rest = url.partition("://")
    account, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{account.partition(':')[0]}{at}{place}"


def _root_message(error: BaseException) -> str:
    """Return the first line of the driver's own message, at the end of a chain of errors."""
    cause = error.__cause__ or error.__context__
    return str(error).splitlines()[0] if cause is None else _root_message(cause)


class JournalFile:
    """A backend of Optuna's journal storage: one JSON line per operation.

    `OutputDirectory` holds a lock that dies with the process, so only one process writes and no lock file can be left
    over. A line that a killed process left incomplete is cut off on opening. Lines are flushed but not synced: they
    survive the death of the process, not a power failure, and cost microseconds.

    Args:
        path: The file; created if missing.

    Raises:
        StoreError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            with open_regular(path, "ab"):  # created, and refused unless it is a file of this folder only
                content = read_regular(path)
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                os.truncate(path, len(whole))
        self._lines = whole.splitlines()

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the operations starting at an index."""
        return [json.loads(line) for line in self._lines[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append operations, all of them or none.

        Raises:
            StoreError: The disk is full or not writable; the file is unchanged.
        """
        lines = [json.dumps(log, separators=(",", ":")).encode() for log in logs]
        with disk_errors(self.path), open_regular(self.path, "ab") as file:
            before = file.tell()
            try:
                file.write(b"".join(line + b"\n" for line in lines))
                file.flush()
            except OSError:
                os.truncate(self.path, before)
                raise
        self._lines += lines


class StudyLease:
    """Reserves a study in a database for this process, with a heartbeat that other machines can see.

    The lock of the output directory does not help between machines. When a process dies, processes on the same machine
    can take over at once, those on other machines a minute after the last heartbeat.

    Args:
        study: The study.

    Raises:
        RecipeError: Another process is using it.
    """

    def __init__(self, study: "optuna.Study") -> None:
        self._study = study
        self._owner = {"host": socket.gethostname(), "process": os.getpid(), "mark": uuid.uuid4().hex}
        self._ended = threading.Event()
        holder = study.user_attrs.get(_LEASE)
        if holder is not None and _is_held(holder):
            raise RecipeError(
                f"a study must be used by one search at a time, got {study.study_name}, which process "
                f"{holder['process']} on {holder['host']} is using; wait for it, or use another storage"
            )
        self._renew()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Release the study."""
        self._ended.set()
        self._thread.join()
        self._study.set_user_attr(_LEASE, {**self._owner, "until": 0.0})

    def _beat(self) -> None:
        while not self._ended.wait(_HEARTBEAT_SECONDS):
            # If the database is gone, the search itself fails at its next write, with a better message.
            with suppress(Exception):
                self._renew()
        # Database sessions belong to a thread; this one's would stay open.
        self._study._storage.remove_session()

    def _renew(self) -> None:
        self._study.set_user_attr(_LEASE, {**self._owner, "until": time.time() + _LEASE_SECONDS})


def _is_held(holder: dict[str, Any]) -> bool:
    if holder["until"] < time.time():
        return False
    return holder["host"] != socket.gethostname() or is_running(int(holder["process"]))
