"""Options that are dicts of options themselves."""

from collections.abc import Callable, Mapping
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.options.draft import Draft
from quantry.onnx.options.option_row import Apply, OptionRow


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
