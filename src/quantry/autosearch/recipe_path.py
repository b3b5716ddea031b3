"""Changes fields of a recipe by their dotted paths."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import Recipe

_WHOLE = ""


def with_fields(base: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some fields changed, all at once: what is between need not be valid.

    Args:
        base: The recipe to start from.
        changes: Dotted paths to values, such as ``{"scale.activation": MinMax(), "tune.steps.0.iterations": 500}``. A
            path into a field that is changed too is applied to its new value.

    Returns:
        The changed recipe.

    Raises:
        RecipeError: There is no such field, or the recipe is not valid.

    Example:
        >>> with_fields(Recipe(), {"scale.reduce_range": True}).scale.reduce_range
        True
    """
    tree: dict[str, Any] = {}
    for path, value in changes.items():
        node = tree
        for part in path.split("."):
            node = node.setdefault(part, {})
        node[_WHOLE] = value
    changed = _changed(base, tree, "")
    assert isinstance(changed, Recipe)
    return changed


def _changed(current: Any, tree: Mapping[str, Any], where: str) -> Any:
    value = tree.get(_WHOLE, current)
    parts = {part: branch for part, branch in tree.items() if part != _WHOLE}
    if not parts:
        return value
    if isinstance(value, tuple):
        return _changed_tuple(value, parts, where)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise RecipeError(f"a path must lead to a field, got {_joined(where, next(iter(parts)))!r}; {value!r} has none")
    names = [part.name for part in dataclasses.fields(value) if part.init]
    for part in parts:
        if part not in names:
            raise RecipeError(
                f"a path must lead to a field, got {_joined(where, part)!r}{nearest_spelling(part, names)} "
                f"({type(value).__name__} has {names})"
            )
    fields = {part: _changed(getattr(value, part), branch, _joined(where, part)) for part, branch in parts.items()}
    return dataclasses.replace(value, **fields)


def _changed_tuple(value: tuple[Any, ...], parts: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    items = list(value)
    for part, branch in parts.items():
        if not part.isdigit() or int(part) >= len(items):
            raise RecipeError(
                f"a path must name one of the {len(items)} items by its index, got {_joined(where, part)!r}"
            )
        items[int(part)] = _changed(items[int(part)], branch, _joined(where, part))
    return tuple(items)


def _joined(where: str, part: str) -> str:
    return f"{where}.{part}" if where else part
