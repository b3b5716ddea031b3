"""Calls with a misspelt keyword end in our error, with the nearest spelling, and not in a bare TypeError."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from quantry.errors import unknown_argument

_P = ParamSpec("_P")
_R = TypeVar("_R")


def known_keywords(
    where: str, other_names: Mapping[str, str] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that refuses keywords a function does not have.

    Args:
        where: What messages call the function.
        other_names: What an argument is called elsewhere, for a hint where the spelling is not near.

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
                    raise unknown_argument(where, name, known, meant=synonyms.get(name))
            return function(*arguments, **keywords)

        return checked

    return decorate
