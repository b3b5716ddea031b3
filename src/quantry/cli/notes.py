"""Notes of a quantization for a terminal: short, grouped, most important first."""

import re
from collections.abc import Iterable, Sequence

_EQUALIZED = re.compile(r"no cross-layer equalization after (\d+) layers?: (.*)", re.DOTALL)
_HOUSEKEEPING = re.compile(r"(removed|raised|folded|fused|inferred|axes of|renamed|converted opset|npu: positions)\b")
_IMPORTANT = re.compile(
    r"differ a lot|no calibration data|pixel|images are used|not yet supported|reduce accuracy|far below|fell back"
)
_SEE_EQUALIZATION = "docs/accuracy.md"


def grouped_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Return the notes with those of one kind joined, the important ones first, housekeeping last.

    Args:
        notes: The notes, as the stages wrote them.

    Example:
        >>> for note in grouped_notes(
        ...     [
        ...         "removed 1 weights that no output needs",
        ...         "raised opset 11 to 13",
        ...         "no cross-layer equalization after 12 layers: Clip is not positively homogeneous",
        ...         "no cross-layer equalization after 3 layers: Concat combines or moves channels",
        ...     ]
        ... ):
        ...     print(note)
        15 layers not equalized because of Clip (12), Concat (3); see docs/accuracy.md
        graph: removed 1 weights that no output needs; raised opset 11 to 13
    """
    blocked: list[tuple[int, str]] = []
    housekeeping: list[str] = []
    others: list[str] = []
    for note in dict.fromkeys(notes):
        found = _EQUALIZED.fullmatch(note)
        if found is not None:
            blocked.append((int(found[1]), found[2]))
        elif _HOUSEKEEPING.match(note):
            housekeeping.append(note)
        else:
            others.append(note)
    # Sorting is stable: the stages wrote the notes in the order of the data.
    others.sort(key=lambda note: _IMPORTANT.search(note) is None)
    joined = (f"graph: {'; '.join(housekeeping)}",) if housekeeping else ()
    return (*others, *_blocked_note(blocked), *joined)


def _blocked_note(blocked: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    if not blocked:
        return ()
    counts: dict[str, int] = {}
    for count, reason in sorted(blocked, key=lambda entry: -entry[0]):
        # The operator says enough; the full sentence is in the report and in --json.
        word = reason.split()[0]
        name = word if word[0].isupper() else reason
        counts[name] = counts.get(name, 0) + count
    told = ", ".join(f"{name} ({count})" for name, count in counts.items())
    total = sum(count for count, _ in blocked)
    return (f"{total} layer{'' if total == 1 else 's'} not equalized because of {told}; see {_SEE_EQUALIZATION}",)
