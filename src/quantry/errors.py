"""Every exception that quantry raises, and the check for unknown keyword arguments.

::

    QuantryError
    ├── UserError                      the caller can fix it
    │   ├── RecipeError (ValueError)   an option is unknown, out of range or incompatible with another
    │   │   ├── ConflictError          two options are incompatible
    │   │   └── OptionError            an option has a wrong value; each front door says its own name of the option
    │   ├── ModelError (ValueError)    the float model cannot be used as it is
    │   │   ├── ModelNotFoundError (FileNotFoundError)
    │   │   └── Float16Error           the model computes in float16, and nothing converts it
    │   ├── DataError (ValueError)     calibration or evaluation data do not fit the model
    │   ├── SelectionError (ValueError)  a name, pattern or operator type matches nothing
    │   ├── StoreError (OSError)       the store's directory cannot be read or written, or the disk is full
    │   │   └── FileKindError          a link, pipe, device or folder stands where a file must be
    │   └── MissingExtraError (ImportError)  an optional dependency is needed and not installed
    ├── StageError (RuntimeError)      a stage failed; names the stage and what ran before it
    └── InternalError (AssertionError) an invariant of quantry is violated: please report it as a bug

Each also inherits from the builtin exception that a caller would catch. A message has three parts: what must hold, what
was given, and where.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class QuantryError(Exception):
    """Base class of all exceptions that quantry raises."""


class UserError(QuantryError):
    """The input is invalid, and the message says how to fix it."""


class RecipeError(UserError, ValueError):
    """An option is unknown, out of range, or incompatible with another."""


class ConflictError(RecipeError):
    """Two options are incompatible.

    Attributes:
        conflict: The parts of the message, a `quantry.recipe.compatibility.Conflict`.
    """

    # Not an argument: worker processes pickle errors by their message and their attributes.
    conflict: Any = None


class OptionError(RecipeError):
    """An option has a wrong value; each front door says its own name of the option.

    Attributes:
        option: The option, as Python names it.
        problem: What is wrong: the message without the option.
    """

    # Not arguments: worker processes pickle errors by their message and their attributes.
    option: str = ""
    problem: str = ""

    @classmethod
    def of(cls, option: str, problem: str) -> Self:
        """Return the error for an option.

        Args:
            option: The option, as Python names it.
            problem: What must hold and what was given, such as "must be above 0, got -1".
        """
        error = cls(f"{option} {problem}")
        error.option, error.problem = option, problem
        return error


class ModelError(UserError, ValueError):
    """The float model cannot be used as it is."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no model file at the given path."""


class DataError(UserError, ValueError):
    """Calibration or evaluation data do not fit the model."""


class Float16Error(ModelError):
    """The float model computes in float16, and the option that converts it is off.

    Attributes:
        label: The model's name in the message.
    """

    label: str = ""

    @classmethod
    def of(cls, label: str, option: str = "float16_to_float32=True in PrepareOptions") -> Self:
        """Return the error.

        Args:
            label: The model's name.
            option: The option that converts it, in the caller's words.
        """
        error = cls(
            f"the model must compute in float32, got a float16 model; set {option} to convert it; in {label}",
        )
        error.label = label
        return error


class SelectionError(UserError, ValueError):
    """A node name, pattern, operator type or subgraph matches nothing.

    Attributes:
        field: The option that names it; empty if it is only in the message.
        problem: The message after the name of the option.
    """

    field: str = ""
    problem: str = ""

    @classmethod
    def of(cls, field: str, problem: str) -> Self:
        """Return the error of an option.

        Args:
            field: The option, such as ``Selection.exclude``.
            problem: What it must hold and what was given.
        """
        error = cls(f"{field} {problem}")
        error.field, error.problem = field, problem
        return error


class StoreError(UserError, OSError):
    """The store's directory cannot be read or written, or the disk is full."""


class FileKindError(StoreError):
    """A link, pipe, device or folder stands where a regular file must be; it was neither read nor written."""


class MissingExtraError(UserError, ImportError):
    """An optional dependency is needed and not installed."""


class StageError(QuantryError, RuntimeError):
    """A stage failed for a reason other than the caller's input."""


class InternalError(QuantryError, AssertionError):
    """An invariant of quantry is violated."""


def nearest_spelling(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ``"; did you mean 'percentile'?"``, or an empty string if no known word is similar.

    Example:
        >>> nearest_spelling("percentil", ["percentile", "entropy"])
        "; did you mean 'percentile'?"
    """
    candidates = list(known)
    folded = {candidate.casefold(): candidate for candidate in candidates}
    # 0.6 is the default of difflib: it accepts one wrong letter in three and rejects words that only share an ending.
    matches = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[matches[0]]!r}?" if matches else ""


def require_choice(subject: str, value: object, choices: Iterable[str]) -> None:
    """Raise if a value is none of some choices; the message suggests the nearest spelling.

    Args:
        subject: What the value is for, for the message.
        value: The value.
        choices: The values that are allowed.

    Raises:
        RecipeError: It is another value.

    Example:
        >>> require_choice("sampler", "tpee", ["tpe", "grid", "random"])
        Traceback (most recent call last):
        ...
        quantry.errors.OptionError: sampler must be one of tpe, grid, random, got 'tpee'; did you mean 'tpe'?
    """
    choices = list(choices)
    if value not in choices:
        hint = nearest_spelling(str(value), choices)
        listed = " or ".join(map(repr, choices)) if len(choices) <= 2 else f"one of {', '.join(choices)}"
        raise OptionError.of(subject, f"must be {listed}, got {value!r}{hint}")


def require_known(subject: str, names: object, known: Iterable[str], must: str = "hold known keys") -> None:
    """Raise if a dict has other keys than some; the message suggests the nearest spelling.

    Args:
        subject: What holds the keys, for the message.
        names: The dict, or a tuple of its keys.
        known: The keys that are allowed.
        must: What must hold, for the message.

    Raises:
        RecipeError: It is no dict, or a key is unknown.

    Example:
        >>> require_known("options", {"sede": 1}, ["seed"])
        Traceback (most recent call last):
        ...
        quantry.errors.OptionError: options must hold known keys, got 'sede'; did you mean 'seed'?
    """
    if not isinstance(names, Mapping | tuple):
        raise OptionError.of(subject, f"must be a dict, got {type(names).__name__}")
    known = list(known)
    for name in names:
        if name not in known:
            raise OptionError.of(subject, f"must {must}, got {name!r}{nearest_spelling(str(name), known)}")


def unknown_argument(
    function_name: str, name: str, known: Collection[str], *, meant: str | None = None, what: str = "arguments"
) -> RecipeError:
    """Return the error for a keyword that a function or a dataclass does not have.

    Args:
        function_name: The function or class that was called.
        name: The keyword.
        known: The keywords it has.
        meant: The keyword it has for this, if known.
        what: What was given: "arguments" or "attributes".

    Example:
        >>> print(unknown_argument("AdaRound", "iteration", ["iterations", "seed"]))
        AdaRound must be given known arguments, got 'iteration'; did you mean 'iterations'?
    """
    few = 7  # As many as fit on a line; the largest configurations have a reference page.
    listed = f" (known: {', '.join(known)})" if len(known) <= few else ""
    hint = f"; did you mean {meant!r}?" if meant else nearest_spelling(name, known) or listed
    return RecipeError(f"{function_name} must be given known {what}, got {name!r}{hint}")


def known_keywords(
    function_name: str, other_names: Mapping[str, str] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that rejects unknown keywords with a hint instead of a bare TypeError.

    Args:
        function_name: The function's name in messages.
        other_names: Names that other libraries use for an argument, for hints where the spelling is not similar.

    Raises:
        RecipeError: From the decorated function; the message has the nearest spelling.

    Example:
        >>> @known_keywords("quantize", {"preset": "recipe"})
        ... def quantize(model, recipe="XINT8"):
        ...     return recipe
        >>> quantize("model.onnx", preset="XINT8")
        Traceback (most recent call last):
        ...
        quantry.errors.RecipeError: quantize must be given known arguments, got 'preset'; did you mean 'recipe'?
    """
    synonyms = other_names or {}

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def checked(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
            for name in keywords:
                if name not in known:
                    raise unknown_argument(function_name, name, known, meant=synonyms.get(name))
            return function(*arguments, **keywords)

        return checked

    return decorate
