"""How many digits of a score are shown."""

import math
from collections.abc import Sequence

_DIGITS = 4
_MOST_DIGITS = 8
_LARGE = 0.1
_TINY = 1e-5


def score_format(scores: Sequence[float]) -> str:
    """Return the format in which all scores of a table are written.

    Four decimals, as accuracies are written. Where the best score is small, such as an error, four significant digits
    of it, and more where scores that differ would otherwise look alike.

    Args:
        scores: The scores shown, the best one first.

    Returns:
        What `format` takes.

    Example:
        >>> score_format([0.7917, 0.3778]), score_format([0.00012, 0.0003]), score_format([1.2e-8])
        ('.4f', '.7f', '.3e')
    """
    # A perfect score has no digits to go by.
    best = next((abs(score) for score in scores if score != 0.0), 0.0)
    if best == 0.0 or best >= _LARGE or not math.isfinite(best):
        return f".{_DIGITS}f"
    choices = [_written(best, digits) for digits in range(_DIGITS, _MOST_DIGITS + 1)]
    apart = (choice for choice in choices if len({format(score, choice) for score in scores}) == len(set(scores)))
    return next(apart, choices[-1])


def _written(best: float, digits: int) -> str:
    """Return the format that shows so many significant digits of the best score."""
    if best < _TINY:
        return f".{digits - 1}e"
    return f".{digits - 1 - math.floor(math.log10(best))}f"
