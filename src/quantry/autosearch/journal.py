"""The study on disk: a file of lines that survives a process that is killed at any moment."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quantry.autosearch.output_directory import disk_errors


class JournalFile:
    """A backend of Optuna's journal storage: one JSON line for each operation.

    One process at a time writes, which `OutputDirectory` sees to with a lock that dies with the process, so there is no
    lock to break. A line that a killed process left unfinished is cut off on opening. Lines are handed to the system
    but not forced onto the disk: they survive the process, and cost microseconds.

    Args:
        path: The file; made when missing.

    Raises:
        StoreError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                os.truncate(path, len(whole))
        self._lines = whole.splitlines()

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the operations from a number on."""
        return [json.loads(line) for line in self._lines[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append operations, all of them or none.

        Raises:
            StoreError: The disk is full or may not be written; the file is as it was before.
        """
        lines = [json.dumps(log, separators=(",", ":")).encode() for log in logs]
        with disk_errors(self.path), self.path.open("ab") as file:
            before = file.tell()
            try:
                file.write(b"".join(line + b"\n" for line in lines))
                file.flush()
            except OSError:
                os.truncate(self.path, before)
                raise
        self._lines += lines
