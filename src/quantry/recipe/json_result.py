"""Results as JSON: frozen dataclasses, whose JSON Schema is derived from their fields and docstrings."""

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Self

Count = Annotated[int, ("minimum", 0)]
Size = Annotated[int, ("minimum", 1)]
Share = Annotated[float, ("minimum", 0), ("maximum", 1)]
Number = float
"""For classes with a field of the name ``float``."""

Interval = tuple[float, float] | None
PlainRecipe = Annotated[Any, ("$ref", "#/$defs/recipe")]

_OPTIONAL = "optional"


@dataclass(frozen=True)
class JsonResult:
    """Base of results: the fields are the keys, and the docstring says what each means."""

    @classmethod
    def of(cls, source: object, **values: Any) -> Self:
        """Return a result with attributes of another object.

        Args:
            source: Its attributes with the names of fields are taken.
            values: The other fields.
        """
        names = (entry.name for entry in fields(cls) if entry.name not in values)
        return cls(**{name: getattr(source, name) for name in names}, **values)


@dataclass(frozen=True)
class ScoreEntry(JsonResult):
    """A score.

    Attributes:
        value: The score.
        interval: 95 % confidence interval; null if there is none.
    """

    value: float
    interval: Interval


def optional_key() -> Any:
    """Return the default of a field whose key is omitted if its value is None."""
    return field(default=None, metadata={_OPTIONAL: True})


def is_optional(key: "Field[Any]") -> bool:
    """Whether the key of a field may be omitted."""
    return bool(key.metadata.get(_OPTIONAL))


def plain(value: Any) -> Any:
    """Return a value as JSON can express it; infinities and NaN become the texts "inf", "-inf" and "nan"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        values = {key: getattr(value, key.name) for key in fields(value)}
        return {
            key.name: plain(content) for key, content in values.items() if content is not None or not is_optional(key)
        }
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    # NumPy scalars and arrays, without importing NumPy.
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
