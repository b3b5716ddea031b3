"""A record of which stages ran and which results were reused."""

import threading
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from quantry.memo._fingerprint import Digest

CacheStatus: TypeAlias = Literal["computed", "reused"]


@dataclass(frozen=True)
class TraceEntry:
    """One stage call.

    Attributes:
        stage: The stage's name.
        key: The digest of everything the result depends on.
        outcome: "computed" if the stage's function ran, "reused" if its result was known.
        seconds: Wall time: of the function if computed, of the lookup if reused.
        result: The digest of the result.
    """

    stage: str
    key: Digest
    outcome: CacheStatus
    seconds: float
    result: Digest


class Trace:
    """Records the calls of a `Memo` in order; threads and memos may share one.

    A result whose blob was gone appears twice: as reused when the stage was called, and as computed when its value was
    needed.

    Example:
        >>> Trace().computed("observe")
        0
    """

    columns: ClassVar[tuple[str, ...]] = ("stage", "outcome", "seconds", "result")
    """The headings of `table`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[TraceEntry] = []

    def __repr__(self) -> str:
        stages = ", ".join(f"{entry.stage} {entry.outcome}" for entry in self.entries)
        return f"Trace({stages})"

    @property
    def entries(self) -> tuple[TraceEntry, ...]:
        """All entries so far, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def add(self, entry: TraceEntry) -> None:
        """Append an entry."""
        with self._lock:
            self._entries.append(entry)

    def computed(self, stage_name: str) -> int:
        """Return how many times the stage's function ran."""
        return self._count(stage_name, "computed")

    def reused(self, stage_name: str) -> int:
        """Return how many times the stage's result was known."""
        return self._count(stage_name, "reused")

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return one row of text per entry, in the order of `columns`, with shortened digests."""
        return [(entry.stage, entry.outcome, f"{entry.seconds:.3f}", entry.result.short) for entry in self.entries]

    def _count(self, stage_name: str, outcome: CacheStatus) -> int:
        return sum(entry.stage == stage_name and entry.outcome == outcome for entry in self.entries)
