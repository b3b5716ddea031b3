"""Naming nodes in a note without letting the note grow with the model."""

from collections.abc import Sequence

_NAMED = 6


def listed(names: Sequence[str]) -> str:
    """Return the first names and how many follow.

    Example:
        >>> listed(["a", "b"])
        'a, b'
    """
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
