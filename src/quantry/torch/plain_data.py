"""`to_dict` and `from_dict` of the configurations, in the form of AMD Quark's."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe.codec import encode


class PlainData:
    """A configuration that can be written as plain data and read again.

    Attributes:
        omitted: Fields that the plain form does not have, as in AMD Quark.
        added: Entries that it has besides the fields.
        readers: How a field is read from its plain form; others are taken as they are.
    """

    omitted: ClassVar[tuple[str, ...]] = ()
    added: ClassVar[Mapping[str, Any]] = {}
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data, in which enumerations and classes are names."""
        names = [entry.name for entry in fields(self)]  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names if name not in self.omitted}
        return {name: plain(value) for name, value in values.items()} | dict(self.added)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Return the configuration of plain data; entries that are missing have their defaults.

        Args:
            config_dict: What `to_dict` returned.

        Raises:
            RecipeError: This is no dictionary, an entry is no field, or it has no valid value.
        """
        if not isinstance(config_dict, Mapping):
            raise RecipeError(f"{cls.__name__}.from_dict must be given a dictionary, got {config_dict!r}")
        names = [entry.name for entry in fields(cls)]  # type: ignore[arg-type]
        values = {}
        for name, value in config_dict.items():
            if name in cls.added:
                continue
            if name not in names:
                raise RecipeError(
                    f"{cls.__name__}.from_dict must be given fields, got {name!r}{nearest_spelling(name, names)}"
                )
            if value is not None:
                values[name] = cls.readers[name](value) if name in cls.readers else value
        return cls(**values)


def plain(value: Any) -> Any:
    """Return a value as plain data.

    Args:
        value: A field of a configuration.
    """
    if isinstance(value, PlainData):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type):
        return value.__name__
    if is_dataclass(value):
        return {"name": type(value).__name__, **encode(value, type(value))}
    if isinstance(value, Mapping):
        return {key.__name__ if isinstance(key, type) else key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def member_of(kind: type[Enum]) -> Callable[[Any], Enum]:
    """Return a function that finds a member by its name.

    Args:
        kind: The enumeration.
    """

    def found(name: Any) -> Enum:
        if not isinstance(name, str) or name not in kind.__members__:
            raise RecipeError(
                f"{kind.__name__} must be one of {', '.join(kind.__members__)}, got {name!r}"
                f"{nearest_spelling(str(name), kind.__members__)}"
            )
        return kind[name]

    return found
