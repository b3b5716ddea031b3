"""One row of the table that translates AMD Quark's options.

Options that are dicts of options themselves.
"""

import enum
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.options.draft import Draft, refuse, with_field

Apply = Callable[[Draft, Any], Draft]

_FIELD = re.compile(r"\b(?:prepare|equalize|observe|plan|scale|mix|tune|emit)\.[a-z_.*]*[a-z_]")


class Kind(enum.Enum):
    """The type of an option's value; the value is its name in the table."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    TEXT = "str"
    LIST = "list"
    DICT = "dict"
    MEMBER = "enum"
    ANY = "object"

    @property
    def annotation(self) -> Any:
        """The type of the values, for signatures."""
        known = {
            Kind.BOOL: bool,
            Kind.INT: int,
            Kind.FLOAT: float,
            Kind.TEXT: str,
            Kind.LIST: Sequence,
            Kind.DICT: Mapping,
        }
        return known.get(self, object)

    def holds(self, value: object) -> bool:
        """Say whether a value is of this type."""
        if self is Kind.BOOL:
            return isinstance(value, bool)
        if self is Kind.INT:
            return isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if self is Kind.FLOAT:
            return isinstance(value, numbers.Real) and not isinstance(value, bool)
        if self is Kind.LIST:
            return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        # Which enumeration is meant only the option itself can say: `own_member` judges its value.
        types: dict[Kind, type] = {Kind.TEXT: str, Kind.DICT: Mapping}
        return isinstance(value, types.get(self, object))


@dataclass(frozen=True)
class OptionRow:
    """One option: what it is called and means there, and what it becomes here.

    Exactly one of ``apply``, ``spelling_of``, ``satisfied`` and ``refused`` says what becomes of it.

    Attributes:
        key: Its name.
        kind: Type of its value; None is allowed as well where ``default`` is "None".
        default: Its default, as text.
        meaning: What it asks for.
        becomes: What it sets in a recipe, for the page.
        apply: Applies a value to the draft of a recipe.
        spelling_of: The field of QuantizationConfig of which this is another spelling.
        satisfied: Why every value gives the same result here, so that nothing is left to set.
        refused: Why it cannot be had, and what to use instead.
        harmless: With ``refused``, the values that ask for nothing and are accepted.
    """

    key: str
    kind: Kind
    default: str
    meaning: str
    becomes: str = ""
    apply: Apply | None = None
    spelling_of: str = ""
    satisfied: str = ""
    refused: str = ""
    harmless: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        ways = (self.apply is not None, bool(self.spelling_of), bool(self.satisfied), bool(self.refused))
        assert sum(ways) == 1, self.key

    def applied(self, draft: Draft, value: object, where: str) -> Draft:
        """Return the draft with this option.

        Args:
            draft: What the options read before ask for.
            value: The value given.
            where: What messages call the option, such as ``extra_options['CLESteps']``.

        Raises:
            RecipeError: The value has the wrong type, or cannot be had.
        """
        self.check(value, where)
        if self.refused:
            if self._asks_for_nothing(value):
                return draft
            raise refuse(where, value, self.refused)
        return draft if self.apply is None else self.apply(draft, value)

    def sets_exactly(self, field: str) -> bool:
        """Return whether it sets this field of a recipe; ``*`` in ``becomes`` stands for activation and weight."""
        return field in self._fields or field.replace(".activation.", ".*.").replace(".weight.", ".*.") in self._fields

    def sets_part_of(self, field: str) -> bool:
        """Return whether it sets a value that has this field of a recipe as a part."""
        return any(field.startswith(f"{path}.") for path in self._fields)

    @cached_property
    def _fields(self) -> tuple[str, ...]:
        return tuple(_FIELD.findall(self.becomes))

    def _asks_for_nothing(self, value: object) -> bool:
        if isinstance(value, list | tuple | Mapping):
            return not value and any(isinstance(nothing, list | Mapping) for nothing in self.harmless)
        return any(type(value) is type(nothing) and value == nothing for nothing in self.harmless)

    def check(self, value: object, where: str) -> None:
        """Refuse a value of the wrong type.

        Raises:
            RecipeError: It is of another type.
        """
        if value is None and self.default == "None":
            return
        if not self.kind.holds(value):
            raise RecipeError(
                f"{where} must be of type {self.kind.value}, got {value!r} of type {type(value).__name__}"
            )


def sets(path: str) -> Apply:
    """Return what puts a value into one field of the draft."""

    def apply(draft: Draft, value: Any) -> Draft:
        changed: Draft = with_field(draft, path, value)
        return changed

    return apply


def without_bearing(key: str, owner: str) -> Apply:
    """Return what notes that an option belongs to a feature that is off."""

    def apply(draft: Draft, value: Any) -> Draft:
        del value
        return draft.noted(f"{key} has no effect without {owner}")

    return apply


def nested(key: str, rows: tuple[OptionRow, ...], owner: str, is_on: Callable[[Draft], bool]) -> Apply:
    """Return what applies a dict of options.

    Args:
        key: The option that holds the dict.
        rows: What may stand in it; applied in this order, whatever the order of the dict.
        owner: The switch of the feature.
        is_on: Whether the feature is on; where it is off, keys and types are checked and the rest is noted.
    """
    known = {row.key: row for row in rows}

    def apply(draft: Draft, value: Mapping[str, Any]) -> Draft:
        for name, setting in value.items():
            row = known.get(name)
            if row is None:
                raise RecipeError(
                    f"extra_options[{key!r}] must hold known keys, got {name!r}{nearest_spelling(str(name), known)}"
                )
            row.check(setting, _place(key, name))
        if not is_on(draft):
            return draft.noted(f"{key} has no effect without {owner}")
        for row in rows:
            if row.key in value:
                draft = _applied(row, draft, value[row.key], _place(key, row.key))
        return draft

    return apply


def _place(key: str, name: str) -> str:
    return f"extra_options[{key!r}][{name!r}]"


def _applied(row: OptionRow, draft: Draft, value: Any, where: str) -> Draft:
    try:
        return row.applied(draft, value, where)
    except RecipeError as error:
        if where in str(error):
            raise
        # The recipe's value speaks of its own field; the caller has set another.
        raise RecipeError(f"{where} cannot be {value!r}: {error}") from error
