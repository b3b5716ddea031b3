"""Values of a recipe in a few words."""

import dataclasses
import enum
from typing import Any


def brief(value: Any) -> str:
    """Return a value as text, without the fields that are at their defaults.

    Args:
        value: Anything that a recipe holds.

    Example:
        >>> from quantry.recipe import CrossLayer
        >>> brief(CrossLayer(steps=3)), brief(CrossLayer())
        ('CrossLayer(steps=3)', 'CrossLayer')
    """
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, list | tuple):
        return " + ".join(map(brief, value)) or "none"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return str(value)
    told = [
        f"{field.name}={brief(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if field.default is dataclasses.MISSING or getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(told)})" if told else type(value).__name__
