"""A search without data: refused, but where nothing has to be found in them."""

from typing import Any

from quantry.autosearch.setting import any_recipe
from quantry.autosearch.space import AnySpace, spaces_of
from quantry.data.random_data import RandomData
from quantry.errors import DataError


def data_or_none_needed(data: Any, evaluator: Any, space: AnySpace) -> Any:
    """Return the data, or samples that only show the model's inputs where none are needed.

    Args:
        data: Calibration data as they were given.
        evaluator: What judges, as it was given.
        space: What is searched.

    Raises:
        DataError: There are no data, and trials would be calibrated or judged on random ones.
    """
    if data is not None:
        return data
    if evaluator is None or isinstance(evaluator, str) or _needs_data(space):
        raise DataError(
            "a search must be given data to calibrate on, and to judge by where no evaluator is given, got none; give "
            "data, --data on the command line; quantry.observe.RandomData() asks for random samples"
        )
    return RandomData()


def _needs_data(space: AnySpace) -> bool:
    recipe = any_recipe(spaces_of(space))
    calibrated = not recipe.plan.weights_only and recipe.plan.activation.dtype.is_integer
    return calibrated or bool(recipe.tune.steps) or recipe.mix.mixed is not None or recipe.equalize.smooth is not None
