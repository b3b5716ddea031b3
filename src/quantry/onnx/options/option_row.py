"""One row of the table that translates AMD Quark's options, and options that are dicts of options."""

import enum
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quantry.errors import OptionError, RecipeError, require_known
from quantry.onnx.options.recipe_draft import RecipeDraft, refuse, with_field

Apply = Callable[[RecipeDraft, Any], RecipeDraft]

_FIELD = re.compile(r"\b(?:prepare|equalize|observe|plan|scale|mix|tune|emit)\.[a-z_.*]*[a-z_]")


class Kind(enum.Enum):
    """The type of an option's values; the member's value is its name in the documentation."""

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
        annotations = {
            Kind.BOOL: bool,
            Kind.INT: int,
            Kind.FLOAT: float,
            Kind.TEXT: str,
            Kind.LIST: Sequence,
            Kind.DICT: Mapping,
        }
        return annotations.get(self, object)

    def holds(self, value: object) -> bool:
        """Return whether a value is of this type."""
        if self is Kind.BOOL:
            return isinstance(value, bool)
        if self is Kind.INT:
            return isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if self is Kind.FLOAT:
            return isinstance(value, numbers.Real) and not isinstance(value, bool)
        if self is Kind.LIST:
            return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        # Only the option itself knows its enumeration: `own_member` checks the value.
        types: dict[Kind, type] = {Kind.TEXT: str, Kind.DICT: Mapping}
        return isinstance(value, types.get(self, object))


@dataclass(frozen=True)
class OptionRow:
    """One option: its name and meaning in AMD Quark, and its effect on a recipe.

    Exactly one of ``apply``, ``spelling_of``, ``satisfied`` and ``refused`` is set.

    Attributes:
        key: Its name.
        kind: Type of its values; None is also allowed if ``default`` is "None".
        default: Its default, as text.
        meaning: What it does in AMD Quark.
        becomes: The fields of a recipe that it sets, for the documentation and for messages.
        apply: Applies a value to the draft of a recipe.
        spelling_of: The field of QuantizationConfig that this is another name for.
        satisfied: Why every value has the same result, so that there is nothing to set.
        refused: Why it is not supported, and what to use instead.
        harmless: With ``refused``, the values that are accepted because they request nothing.
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

    def applied(self, draft: RecipeDraft, value: object, option: str) -> RecipeDraft:
        """Return the draft with this option applied.

        Args:
            draft: The options read before.
            value: The value.
            option: Name of the option in messages, such as ``extra_options['CLESteps']``.

        Raises:
            RecipeError: The value has the wrong type or is not supported.
        """
        self.check(value, option)
        if self.refused:
            if self._is_harmless(value):
                return draft
            raise refuse(option, value, self.refused)
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

    def _is_harmless(self, value: object) -> bool:
        if isinstance(value, list | tuple | Mapping):
            return not value and any(isinstance(nothing, list | Mapping) for nothing in self.harmless)
        return any(type(value) is type(nothing) and value == nothing for nothing in self.harmless)

    def check(self, value: object, option: str) -> None:
        """Reject a value of the wrong type.

        Raises:
            RecipeError: The value has another type.
        """
        if value is None and self.default == "None":
            return
        if not self.kind.holds(value):
            raise OptionError(
                f"{option} must be of type {self.kind.value}, got {value!r} of type {type(value).__name__}"
            )


def sets(path: str) -> Apply:
    """Return a function that sets one field of the draft."""

    def apply(draft: RecipeDraft, value: Any) -> RecipeDraft:
        return with_field(draft, path, value)

    return apply


def sets_field(key: str, kind: Kind, default: str, meaning: str, path: str) -> OptionRow:
    """Return the row of an option whose value is that of a field of the recipe."""
    return OptionRow(key, kind, default, meaning, path, sets(path))


def same_result(key: str, kind: Kind, default: str, meaning: str, reason: str) -> OptionRow:
    """Return the row of an option whose values all have the same result, for a reason."""
    return OptionRow(key, kind, default, meaning, satisfied=reason)


def refuses(key: str, kind: Kind, meaning: str, instead: str, *, harmless: object) -> OptionRow:
    """Return the row of an unsupported option, of which only the default is accepted."""
    return OptionRow(key, kind, repr(harmless), meaning, refused=instead, harmless=(harmless,))


def no_effect(key: str, owner: str) -> Apply:
    """Return a function that notes that an option belongs to a feature that is off."""

    def apply(draft: RecipeDraft, value: Any) -> RecipeDraft:
        del value
        return draft.with_note(f"{key} has no effect without {owner}")

    return apply


def nested(key: str, rows: tuple[OptionRow, ...], owner: str, is_on: Callable[[RecipeDraft], bool]) -> Apply:
    """Return a function that applies a dict of options.

    Args:
        key: The option that holds the dict.
        rows: The options in the dict; applied in this order, not in the order of the dict.
        owner: The switch of the feature.
        is_on: Whether the feature is on; if it is off, keys and types are checked and the dict has no effect.
    """
    rows_by_key = {row.key: row for row in rows}

    def apply(draft: RecipeDraft, value: Mapping[str, Any]) -> RecipeDraft:
        for name, setting in value.items():
            require_known(f"extra_options[{key!r}]", (name,), rows_by_key)
            rows_by_key[name].check(setting, _place(key, name))
        if not is_on(draft):
            return draft.with_note(f"{key} has no effect without {owner}")
        for row in rows:
            if row.key in value:
                draft = _applied(row, draft, value[row.key], _place(key, row.key))
        return draft

    return apply


def _place(key: str, name: str) -> str:
    return f"extra_options[{key!r}][{name!r}]"


def _applied(row: OptionRow, draft: RecipeDraft, value: Any, option: str) -> RecipeDraft:
    try:
        return row.applied(draft, value, option)
    except RecipeError as error:
        names_it = isinstance(error, OptionError) and (not error.option or error.option.startswith(option))
        if names_it:
            raise
        # The error names the field of the recipe; the caller knows the option.
        raise OptionError(f"{option} cannot be {value!r}: {error}") from error
