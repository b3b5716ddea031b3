"""Configurations that refuse names they do not have, so that a misspelt one never passes in silence."""

from dataclasses import fields
from typing import Any, ClassVar, Self

from quantry.errors import RecipeError, nearest_spelling


class KnownAttributes:
    """A dataclass of which only fields can be set.

    Example:
        >>> from quantry.onnx import QuantizationConfig
        >>> QuantizationConfig().calibration_method = "MinMax"
        Traceback (most recent call last):
        ...
        quantry.errors.RecipeError: QuantizationConfig must be given known attributes, got 'calibration_method'; \
did you mean 'calibrate_method'?
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field.

        Raises:
            RecipeError: There is no such field; the message has the nearest spelling.
        """
        if name not in _names(type(self)):
            raise _unknown(type(self), "attributes", name)
        super().__setattr__(name, value)


class KnownArguments:
    """A dataclass that is made from keywords which name fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Refuse unknown keywords before the dataclass does, whose message has no spelling.

        Args:
            arguments: For the dataclass.
            settings: For the dataclass, by name.

        Raises:
            RecipeError: A keyword names no field; the message has the nearest spelling.
        """
        del arguments
        for name in settings:
            if name not in _names(cls):
                raise _unknown(cls, "arguments", name)
        return super().__new__(cls)


def _names(owner: type[KnownAttributes | KnownArguments]) -> tuple[str, ...]:
    return tuple(part.name for part in fields(owner))


def _unknown(owner: type[KnownAttributes | KnownArguments], what: str, name: str) -> RecipeError:
    known = _names(owner)
    few = 7  # As many as fit a line; the fields of the largest configuration have a page of their own.
    hint = nearest_spelling(name, known) or (f" (known: {', '.join(known)})" if len(known) <= few else "")
    return RecipeError(f"{owner.__name__} must be given known {what}, got {name!r}{hint}")
