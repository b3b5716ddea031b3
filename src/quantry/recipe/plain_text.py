"""Read YAML and JSON text that a user wrote; whatever is wrong with it ends in one exception."""

import functools
import json
import re
from typing import Any

from quantry.errors import RecipeError

_LARGEST = 100_000
"""Most values in a text after its YAML aliases are expanded; few lines of aliases can stand for billions."""


def yaml_value(text: str, what: str) -> Any:
    """Return the value of a YAML text.

    Numbers such as ``2e-07``, which Python and JSON write, are floats; YAML 1.1 reads them as text.

    Args:
        text: The text.
        what: What it holds, for messages: "a recipe".

    Raises:
        RecipeError: It is not valid YAML, or it is nested too deep or too large.
    """
    import yaml

    try:
        plain = yaml.load(text, _loader())  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        # The library's own message spans several lines and names a stream, which a string does not have.
        mark = error.problem_mark
        position = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise RecipeError(f"{what} must be valid YAML, got {error.problem or error.context}{position}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{what} must be valid YAML, got {_described(error)}") from error
    _check_size(plain, what)
    return plain


def json_value(text: str, what: str) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text.
        what: What it holds, for messages: "a recipe".

    Raises:
        RecipeError: It is not valid JSON, or nested too deep.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{what} must be valid JSON, got {_described(error)}") from error


def _described(error: Exception) -> str:
    """Return what a library says about a text, without its advice for programmers, which comes after a semicolon."""
    if isinstance(error, RecursionError):
        return "text that is nested too deep"
    return str(error).split(";", maxsplit=1)[0]


@functools.cache  # importing yaml takes 30 ms, so the class is made when it is needed, once
def _loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        """The safe loader with floats as Python writes them."""

    pattern = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", pattern, list("-+0123456789"))
    return Loader


def _check_size(plain: object, what: str) -> None:
    sizes: dict[int, int] = {}

    def size(value: object, inside: frozenset[int]) -> int:
        if not isinstance(value, dict | list):
            return 1
        if id(value) in inside:
            raise RecipeError(f"{what} must end, got a YAML alias of something that contains it")
        if id(value) not in sizes:
            items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            sizes[id(value)] = 1 + sum(size(item, inside | {id(value)}) for item in items)
        return sizes[id(value)]

    if size(plain, frozenset()) > _LARGEST:
        raise RecipeError(f"{what} must have at most {_LARGEST} values after YAML aliases are expanded, got more")
