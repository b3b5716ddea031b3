"""From whatever a user calls a recipe to the recipe."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantry.errors import RecipeError
from quantry.recipe.codec import from_plain, load_recipe
from quantry.recipe.presets import find_preset
from quantry.recipe.recipe import Recipe

_LOG = logging.getLogger("quantry")


def resolve_recipe(recipe: Recipe | str | Path | Mapping[str, Any]) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe that a name, a file or plain data stands for, and notes about it.

    Args:
        recipe: A `Recipe`, the name of a preset, the path of a recipe file, or plain data.

    Returns:
        The recipe, and what a preset of that name does elsewhere but not here yet.

    Raises:
        RecipeError: There is no such preset or file, or it is no recipe.
    """
    if isinstance(recipe, Recipe):
        return recipe, ()
    if isinstance(recipe, Mapping):
        return from_plain(recipe), ()
    if isinstance(recipe, Path) or (isinstance(recipe, str) and Path(recipe).suffix in (".yaml", ".yml", ".json")):
        return load_recipe(recipe), ()
    if not isinstance(recipe, str):
        raise RecipeError(f"recipe must be a Recipe, a preset's name, a file or a mapping, got {type(recipe).__name__}")
    preset = find_preset(recipe)
    notes = tuple(f"preset {preset.recipe.name}: not yet part of it here: {pending}" for pending in preset.pending)
    for note in notes:
        _LOG.warning(note)
    return preset.recipe, notes
