"""Notes of a quantization for a reader: short, grouped, most important first."""

import re
from collections.abc import Iterable, Mapping, Sequence

from quantry.graph.quant_plan import DeclinedNode

# What layers lack, in short, and the notes that say so one reason at a time.
_BLOCKED = {
    "not equalized": re.compile(r"no cross-layer equalization after (\d+) layers?: (.*)", re.DOTALL),
    "without SmoothQuant": re.compile(r"no SmoothQuant in front of (\d+) layers?: (.*)", re.DOTALL),
    "without power-of-two fit": re.compile(r"no power-of-two fit through (\d+) nodes?: (.*)", re.DOTALL),
}
_TARGET = re.compile(r"for ([\w.-]+): (\S+ is .*)", re.DOTALL)
_NOTHING = re.compile(r"SmoothQuant divided the channels of 0 of")
_HOUSEKEEPING = re.compile(
    r"(removed|raised|folded|fused|inferred|axes of|renamed|converted opset|npu: positions|npu: multiplied)\b"
)
_IMPORTANT = re.compile(
    r"differ a lot|no calibration data|pixel|images are used|not yet supported|reduce accuracy|far below|fell back"
)
_BY_NAME = "excluded by name:"
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
    blocked: dict[str, list[tuple[int, str]]] = {}
    adapted: dict[str, list[str]] = {}
    housekeeping: list[str] = []
    others: list[str] = []
    for note in dict.fromkeys(notes):
        if _NOTHING.match(note):
            continue
        lacks = next(((what, found) for what, kind in _BLOCKED.items() if (found := kind.fullmatch(note))), None)
        if lacks is not None:
            blocked.setdefault(lacks[0], []).append((int(lacks[1][1]), lacks[1][2]))
        elif (for_target := _TARGET.fullmatch(note)) is not None:
            adapted.setdefault(for_target[1], []).append(for_target[2])
        elif _HOUSEKEEPING.match(note):
            housekeeping.append(note)
        else:
            others.append(note)
    # Sorting is stable: the stages wrote the notes in the order of the data.
    others.sort(key=lambda note: _IMPORTANT.search(note) is None)
    targets = (f"for {target}: {', '.join(changes)}" for target, changes in adapted.items())
    joined = (f"graph: {'; '.join(housekeeping)}",) if housekeeping else ()
    return (*others, *targets, *(_blocked_note(what, reasons) for what, reasons in blocked.items()), *joined)


def grouped_reasons(declined: Iterable[DeclinedNode]) -> Mapping[str, Sequence[DeclinedNode]]:
    """Return the nodes that stayed float by their reason, the most frequent reason first.

    Nodes that the recipe excludes one by one have a reason each; several of them are one group.

    Args:
        declined: The nodes.

    Example:
        >>> nodes = [DeclinedNode(name, "Conv", f"excluded by '{name}'") for name in ("a", "b")]
        >>> list(grouped_reasons(nodes))
        ["excluded by name: 'a' and 1 more"]
    """
    groups: dict[str, list[DeclinedNode]] = {}
    for one in declined:
        by_name = one.reason == f"excluded by '{one.node}'"
        groups.setdefault(_BY_NAME if by_name else one.reason, []).append(one)
    if named := groups.pop(_BY_NAME, None):
        first = named[0]
        groups[first.reason if len(named) == 1 else f"{_BY_NAME} '{first.node}' and {len(named) - 1} more"] = named
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _blocked_note(what: str, blocked: Sequence[tuple[int, str]]) -> str:
    counts: dict[str, int] = {}
    for count, reason in sorted(blocked, key=lambda entry: -entry[0]):
        # The operator says enough; the full sentence is in the report and in --json.
        word = reason.split()[0]
        name = word if word[0].isupper() else reason
        counts[name] = counts.get(name, 0) + count
    told = ", ".join(f"{name} ({count})" for name, count in counts.items())
    total = sum(count for count, _ in blocked)
    thing = "tensor" if what == "without power-of-two fit" else "layer"
    # A reason in words is a clause of its own; names of operators follow "because of".
    because = "because of" if next(iter(counts))[:1].isupper() else "because"
    return f"{total} {thing}{'' if total == 1 else 's'} {what} {because} {told}; see {_SEE_EQUALIZATION}"
