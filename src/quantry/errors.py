"""Every exception quantry raises.

::

    QuantryError
    ├── UserError                      the caller can mend it
    │   ├── RecipeError (ValueError)   an option is unknown, out of range or does not go with another
    │   │   └── ConflictError          two options do not go together
    │   ├── ModelError (ValueError)    the float model cannot be used as it is
    │   │   └── ModelNotFoundError (FileNotFoundError)
    │   ├── DataError (ValueError)     calibration or evaluation data do not fit the model
    │   ├── SelectionError (ValueError)  a name, pattern or operator type selects nothing
    │   ├── StoreError (OSError)       the store's directory cannot be written or is full
    │   └── MissingExtraError (ImportError)  an optional dependency is needed and absent
    ├── StageError (RuntimeError)      a stage failed; says which, and what ran before it
    └── InternalError (AssertionError) a promise of quantry itself was broken: a defect of ours

Each also inherits the builtin a caller would catch anyway. A message has three parts: what must hold, what was
given, and where.
"""

import difflib
from collections.abc import Collection, Iterable
from typing import Any


class QuantryError(Exception):
    """Root of everything quantry raises on purpose."""


class UserError(QuantryError):
    """The input is at fault and the message says how to mend it."""


class RecipeError(UserError, ValueError):
    """An option is unknown, out of range, or does not go with another."""


class ConflictError(RecipeError):
    """Two options do not go together.

    Attributes:
        conflict: The parts of the message, a `quantry.recipe.compatibility.Conflict`.
    """

    # Not an argument: worker processes pickle errors by their message and their attributes.
    conflict: Any = None


class ModelError(UserError, ValueError):
    """The float model cannot be used as it is."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no model file at the given path."""


class DataError(UserError, ValueError):
    """Calibration or evaluation data do not fit the model."""


class SelectionError(UserError, ValueError):
    """A node name, pattern, operator type or subgraph selects nothing."""


class StoreError(UserError, OSError):
    """The store's directory cannot be written, or the disk is full."""


class MissingExtraError(UserError, ImportError):
    """An optional dependency is needed for this and is not installed."""


class StageError(QuantryError, RuntimeError):
    """A stage failed for a reason that is not the caller's input."""


class InternalError(QuantryError, AssertionError):
    """A promise of quantry itself was broken."""


def nearest_spelling(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ``"; did you mean 'percentile'?"``, or an empty string when nothing is near.

    Example:
        >>> nearest_spelling("percentil", ["percentile", "entropy"])
        "; did you mean 'percentile'?"
    """
    candidates = list(known)
    folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[matches[0]]!r}?" if matches else ""


def unknown_argument(
    where: str, name: str, known: Collection[str], *, meant: str | None = None, what: str = "arguments"
) -> RecipeError:
    """Return the error of a keyword that a function or a dataclass does not have.

    Args:
        where: What was called.
        name: The keyword.
        known: What it has.
        meant: What the keyword stands for, where that is known.
        what: What was given: "arguments" or "attributes".

    Example:
        >>> print(unknown_argument("AdaRound", "iteration", ["iterations", "seed"]))
        AdaRound must be given known arguments, got 'iteration'; did you mean 'iterations'?
    """
    few = 7  # As many as fit a line; the fields of the largest configuration have a page of their own.
    listed = f" (known: {', '.join(known)})" if len(known) <= few else ""
    hint = f"; did you mean {meant!r}?" if meant else nearest_spelling(name, known) or listed
    return RecipeError(f"{where} must be given known {what}, got {name!r}{hint}")
