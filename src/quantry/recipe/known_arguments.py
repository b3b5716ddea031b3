"""Dataclasses that refuse keywords they do not have, so that a misspelt one ends in our error."""

from dataclasses import fields
from typing import Any, Self

from quantry.errors import RecipeError, unknown_argument


class KnownArguments:
    """A dataclass that is made from keywords which name fields.

    Example:
        >>> from quantry.recipe import AdaRound
        >>> AdaRound(iteration=500)
        Traceback (most recent call last):
        ...
        quantry.errors.RecipeError: AdaRound must be given known arguments, got 'iteration'; \
did you mean 'iterations'?
    """

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Refuse unknown keywords before the dataclass does, whose message has no spelling.

        Args:
            arguments: For the dataclass.
            settings: For the dataclass, by name.

        Raises:
            RecipeError: A keyword names no field; the message has the nearest spelling.
        """
        del arguments
        known = field_names(cls) if settings else ()
        for name in settings:
            if name not in known:
                raise unknown_name(cls, "arguments", name)
        return super().__new__(cls)


def field_names(owner: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(part.name for part in fields(owner))


def unknown_name(owner: Any, what: str, name: str) -> RecipeError:
    """Return the error of a name that is no field of a dataclass.

    Args:
        owner: The dataclass.
        what: What was given: "arguments" or "attributes".
        name: The name.
    """
    return unknown_argument(owner.__name__, name, field_names(owner), what=what)
