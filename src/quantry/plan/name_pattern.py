"""What users mean by the name of a node or a tensor: one rule wherever names select something."""

import fnmatch
import re
from collections.abc import Callable, Iterable

from quantry.errors import SelectionError, nearest_spelling

_EXPRESSION = re.compile(r"[\\*+?()|\[\]{}$]")


def name_pattern(entry: str, where: str) -> Callable[[str], bool]:
    """Return whether a name is meant by an entry.

    Args:
        entry: A name, in which ``*`` stands for anything, ``?`` for any character and ``[2-5]`` for one of some;
            starting with ``^``, a regular expression that must match from the start.
        where: The field it was written in, for messages.

    Raises:
        SelectionError: The regular expression is none.

    Example:
        >>> [name for name in ("head/conv", "stem/conv") if name_pattern("head/*", "exclude")(name)]
        ['head/conv']
    """
    if not isinstance(entry, str):
        raise SelectionError(f"{where} must hold names, got {entry!r}")
    if entry.startswith("^"):
        try:
            return _found_by(re.compile(entry))
        except re.error as error:
            raise SelectionError(f"{where} must hold valid regular expressions, got {entry!r}: {error}") from error
    # What looks like a pattern may be the name itself.
    return lambda name: name == entry or fnmatch.fnmatchcase(name, entry)


def meant(entry: str, known: Iterable[str]) -> str:
    """Return a hint at what an entry that selects nothing could mean; empty where there is none.

    Args:
        entry: The entry.
        known: The names there are.
    """
    names = list(known)
    if _EXPRESSION.search(entry) and not entry.startswith("^"):
        try:
            hits = sum(map(_found_by(re.compile(f"^{entry}")), names))
        except re.error:
            hits = 0
        if hits:
            return f"; did you mean {'^' + entry!r}? Regular expressions start with ^, and this one matches {hits}"
    return nearest_spelling(entry.lstrip("^"), names)


def _found_by(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.match(name) is not None
