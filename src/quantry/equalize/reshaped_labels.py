"""Labels of channels after a Reshape."""

import math
from collections.abc import Sequence

import numpy as np

Length = int | str | None
"""Length of an axis: a number, the name of a symbolic one, or None if nothing is known."""


def reshaped(labels: np.ndarray, before: Sequence[Length], after: Sequence[Length]) -> np.ndarray | None:
    """Return labels after a Reshape; None if an axis of unknown length is joined with others or cut.

    Axes are matched in groups that hold the same number of elements, so labels are only spread out along the axes of
    their own group.

    Args:
        labels: Of the input, one axis for each of its axes; length 1 where they do not depend on the axis.
        before: Lengths of the input's axes.
        after: The same for the output.
    """
    groups = _matched_axes(before, after)
    if groups is None:
        return None
    current, result = labels, list[int]()
    for old, new in groups:
        own = labels.shape[old.start : old.stop]
        lengths = [1] * len(new)
        if any(length > 1 for length in own):
            # An unknown length is alone in its group, and keeps its labels.
            pairs = zip(before[old.start : old.stop], own, strict=True)
            inner = [length if isinstance(length, int) else known for length, known in pairs]
            wanted = [length if isinstance(length, int) else 1 for length in after[new.start : new.stop]]
            lengths = inner if len(old) == len(new) == 1 else wanted
            current = np.broadcast_to(current, (*result, *inner, *labels.shape[old.stop :]))
        current = current.reshape((*result, *lengths, *labels.shape[old.stop :]))
        result += lengths
    return current


def _matched_axes(before: Sequence[Length], after: Sequence[Length]) -> list[tuple[range, range]] | None:
    """Return groups of axes with as many elements in the input as in the output; None if lengths are unknown."""
    groups = []
    left, right, assumed = 0, 0, 0
    while left < len(before) or right < len(after):
        old, new = before[left : left + 1], after[right : right + 1]
        if _are_known(old) and _are_known(new):
            ends = _same_product(before, after, left, right)
        else:
            both = len(old) == len(new) == 1 and not _are_known(old) and not _are_known(new)
            ends = (left + 1, right + 1) if both else None
            # If all other lengths agree, so does one that is unknown, but not two: 2 x 6 may have become 3 x 4.
            assumed += old != new or None in old
        if ends is None or assumed > 1:
            return None
        groups.append((range(left, ends[0]), range(right, ends[1])))
        left, right = ends
    return groups


def _same_product(before: Sequence[Length], after: Sequence[Length], left: int, right: int) -> tuple[int, int] | None:
    """Return the ends of the shortest runs of known axes, from given places on, with the same number of elements."""
    start, begin = left, right
    left, right = min(left + 1, len(before)), min(right + 1, len(after))
    while (old := _product(before[start:left])) != (new := _product(after[begin:right])):
        grows_left = old < new
        if (left == len(before)) if grows_left else (right == len(after)):
            return None
        left, right = left + grows_left, right + (not grows_left)
        if not (_are_known(before[start:left]) and _are_known(after[begin:right])):
            return None
    return left, right


def _are_known(lengths: Sequence[Length]) -> bool:
    return all(isinstance(length, int) for length in lengths)


def _product(lengths: Sequence[Length]) -> int:
    # No elements at all would match anything.
    return math.prod(length for length in lengths if isinstance(length, int) and length)
