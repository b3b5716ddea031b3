"""Results as JSON: kept entry by entry while a run goes on, so that an interrupted run loses nothing."""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, describe_versions

Entry = dict[str, Any]


class ResultFile:
    """A file of named entries with the machine and versions they were measured on.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return everything; no entries where there is no file."""
        if not self.path.exists():
            return {"machine": {}, "versions": {}, "command": "", "entries": {}}
        loaded: dict[str, Any] = json.loads(self.path.read_text())
        return loaded

    def start(self, command: str, *, fresh: bool, versions: dict[str, str] | None = None) -> None:
        """Note what is about to run; ``fresh`` drops earlier entries, and the versions default to both sides'."""
        content = self.read()
        versions = describe_versions() if versions is None else versions
        content |= {"machine": describe_machine(), "versions": versions, "command": command}
        if fresh:
            content["entries"] = {}
        self._write(content)

    def put(self, name: str, entry: Entry) -> None:
        """Add or replace one entry."""
        content = self.read()
        content["entries"][name] = entry
        self._write(content)

    def _write(self, content: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(self.path)
