"""What a user should know about a result: notes are values, and become text where a reader sees them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

NoteValue = str | int | float
"""What a note says about something: a name, a number, or words of a message that has its own home."""


class NoteKind(Enum):
    """What a note is about, which decides where a reader sees it."""

    BROKEN = "broken"
    """The result is of little use."""

    NO_DATA = "no data"
    """Ranges come from random data."""

    IMPORTANT = "important"
    """It may reduce accuracy, or needs a decision of the user."""

    DONE = "done"
    """What a stage did, or why it did nothing."""

    IDLE = "idle"
    """A stage that the recipe runs on every model had nothing to do. Not shown unless all notes are."""

    TARGET = "target"
    """A change of the recipe for the deployment target; has the values ``target`` and ``change``."""

    GRAPH = "graph"
    """Housekeeping that leaves the function of the model as it was."""

    NOT_EQUALIZED = "layers not equalized"
    """Layers that have no cross-layer equalization; has the values ``count`` and ``reason``."""

    NOT_SMOOTHED = "layers without SmoothQuant"
    """Layers that have no SmoothQuant; has the values ``count`` and ``reason``."""

    NOT_FITTED = "nodes without power-of-two fit"
    """Nodes that no factor passes; has the values ``count`` and ``reason``."""


@dataclass(frozen=True)
class Note:
    """One thing that a user should know; ``str(note)`` is its text.

    Attributes:
        message: The text, with a field of `str.format` for every value.
        kind: What it is about. Code asks for the kind and the values, never for the text.
        values: The values by name.

    Example:
        >>> note = Note.of("removed {count} weights that no output needs", NoteKind.GRAPH, count=2)
        >>> str(note), note.value("count")
        ('removed 2 weights that no output needs', 2)
    """

    message: str
    kind: NoteKind = NoteKind.DONE
    values: tuple[tuple[str, NoteValue], ...] = ()

    @classmethod
    def of(cls, message: str, kind: NoteKind = NoteKind.DONE, /, **values: NoteValue) -> Self:
        """Return a note.

        Args:
            message: A literal text with a field for every value.
            kind: What it is about.
            values: The values of its fields.
        """
        return cls(message, kind, tuple(values.items()))

    def value(self, name: str) -> Any:
        """Return one of the values."""
        return dict(self.values)[name]

    def __str__(self) -> str:
        return self.message.format(**dict(self.values))

    def to_plain(self) -> list[Any]:
        """Return the stored form, which JSON can hold."""
        return [self.message, self.kind.value, dict(self.values)]

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return the note that `to_plain` was called on.

        Raises:
            ValueError: It is something else.
        """
        message, kind, values = plain
        return cls(message, NoteKind(kind), tuple(values.items()))


def added_up(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return notes of which those that differ only in their value ``count`` are one, with the sum of the counts.

    Args:
        notes: Notes that all have the value.
    """
    sums: dict[Note, int] = {}
    for note in notes:
        uncounted = replace(note, values=tuple(entry for entry in note.values if entry[0] != "count"))
        sums[uncounted] = sums.get(uncounted, 0) + note.value("count")
    return tuple(replace(note, values=(("count", count), *note.values)) for note, count in sums.items())


def one_per_reason(message: str, counts: Mapping[str, int], kind: NoteKind = NoteKind.DONE) -> tuple[Note, ...]:
    """Return a note for every reason, in the order of their texts.

    Args:
        message: The message, with the fields ``count`` and ``reason``.
        counts: How often each reason applies.
        kind: What the notes are about.
    """
    return tuple(Note.of(message, kind, count=count, reason=reason) for reason, count in sorted(counts.items()))


_MISSING = (NoteKind.NOT_EQUALIZED, NoteKind.NOT_SMOOTHED, NoteKind.NOT_FITTED)
_REASONS = 3  # a line of a terminal holds about as many


def grouped_notes(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return the texts of notes with those of one kind joined, the important ones first, housekeeping last.

    Args:
        notes: The notes, in the order of the stages.

    Example:
        >>> message = "no cross-layer equalization after {count} layers: {reason}"
        >>> for text in grouped_notes(
        ...     [
        ...         Note.of("raised opset {old} to {new}", NoteKind.GRAPH, old=11, new=13),
        ...         Note.of("removed {count} weights that no output needs", NoteKind.GRAPH, count=1),
        ...         Note.of(message, NoteKind.NOT_EQUALIZED, count=12, reason="Clip is not positively homogeneous"),
        ...         Note.of(message, NoteKind.NOT_EQUALIZED, count=3, reason="several nodes read its result"),
        ...     ]
        ... ):
        ...     print(text)
        15 layers not equalized: Clip is not positively homogeneous (12), several nodes read its result (3)
        graph: raised opset 11 to 13; removed 1 weights that no output needs
    """
    by_kind: dict[NoteKind, list[Note]] = {kind: [] for kind in NoteKind}
    for note in dict.fromkeys(notes):
        by_kind[note.kind].append(note)
    first = (NoteKind.BROKEN, NoteKind.NO_DATA, NoteKind.IMPORTANT, NoteKind.DONE)
    adapted: dict[str, list[str]] = {}
    for note in by_kind[NoteKind.TARGET]:
        adapted.setdefault(note.value("target"), []).append(note.value("change"))
    graph = [str(note) for note in by_kind[NoteKind.GRAPH]]
    return (
        *(str(note) for kind in first for note in by_kind[kind]),
        *(f"for {target}: {', '.join(changes)}" for target, changes in adapted.items()),
        *(_what_is_missing(kind, by_kind[kind]) for kind in _MISSING if by_kind[kind]),
        *((f"graph: {'; '.join(graph)}",) if graph else ()),
    )


def _what_is_missing(kind: NoteKind, notes: Iterable[Note]) -> str:
    counts: Mapping[str, int] = {note.value("reason"): note.value("count") for note in added_up(notes)}
    frequent = sorted(counts.items(), key=lambda entry: -entry[1])[:_REASONS]
    total, rest = sum(counts.values()), sum(counts.values()) - sum(count for _, count in frequent)
    reasons = [f"{reason} ({count})" for reason, count in frequent] + ([f"other reasons ({rest})"] if rest else [])
    return f"{total} {kind.value}: {', '.join(reasons)}"
