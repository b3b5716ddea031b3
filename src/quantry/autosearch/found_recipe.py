"""What a recipe is called that a search wrote."""

from dataclasses import replace

from quantry.recipe import Recipe

_ENDING = "-found-by-search"


def found_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe under a name of its own, so that nobody takes it for what the search started from.

    Args:
        recipe: One of the space's; the name is no part of its identity.

    Example:
        >>> found_recipe(Recipe(name="XINT8")).name
        'XINT8-found-by-search'
    """
    return recipe if recipe.name.endswith(_ENDING) else replace(recipe, name=f"{recipe.name}{_ENDING}")
