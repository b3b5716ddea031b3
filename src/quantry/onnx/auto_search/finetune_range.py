"""The space of the search of finetuning parameters: lists become the bounds of ranges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantry.autosearch import Assignment, Choice, IntRange, Parameter, Space, Uniform, in_legs
from quantry.errors import RecipeError
from quantry.onnx.auto_search.conditions import FINETUNE
from quantry.onnx.auto_search.configuration import JOINT, RecipeMaker
from quantry.onnx.auto_search.search_space import NestedBuild
from quantry.recipe import Recipe

_SEARCHED = ("NumIterations", "LearningRate")


@dataclass(frozen=True)
class LegsBuild:
    """Makes recipes of flat assignments whose finetuning goes in legs.

    Attributes:
        build: Makes the recipe with finetuning in one go.
        leg: Iterations of one leg.
    """

    build: NestedBuild
    leg: int

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe of an assignment."""
        return in_legs(self.build(assignment), self.leg)


def finetune_space(
    search_space: Mapping[str, Any], maker: RecipeMaker, device: str | None = None, leg: int | None = None
) -> Space:
    """Return the space of iterations and learning rate.

    Args:
        search_space: ``{"extra_options": {"FastFinetune": {...}}}`` with NumIterations, LearningRate or both; the
            smallest and the largest value of a list are the bounds.
        maker: Knows the starting configuration, which must have include_fast_ft=True.
        device: Where layers are trained, unless the starting configuration says it; None is the CPU.
        leg: Tune in legs of so many iterations, so that longer trials go on from shorter ones; None in one go.

    Raises:
        RecipeError: Something else is in the space, or finetuning is off.
    """
    if not maker.base.include_fast_ft:
        raise RecipeError(
            "advanced_fastft_search needs include_fast_ft=True in the quantization configuration, got False"
        )
    settings = _settings(search_space)
    parameters: dict[str, Parameter] = {}
    for name, values in settings.items():
        if name == JOINT:
            raise RecipeError(f"advanced_fastft_search cannot search {JOINT}; give NumIterations and LearningRate")
        if name not in _SEARCHED:
            raise RecipeError(
                f"advanced_fastft_search takes NumIterations and LearningRate, got {name!r}; set it in the "
                "quantization configuration's extra_options['FastFinetune']"
            )
        parameters[f"{FINETUNE}{name}"] = _range(name, values)
    own = (maker.base.extra_options or {}).get("FastFinetune", {})
    fixed = None
    if device is not None and "OptimDevice" not in own:
        fixed = {"extra_options": {"FastFinetune": {"OptimDevice": device}}}
    build: NestedBuild | LegsBuild = NestedBuild(maker, fixed)
    if leg is not None:
        in_legs(maker({}), leg)
        build = LegsBuild(NestedBuild(maker, fixed), leg)
    return Space(parameters, build, name=f"finetuning parameters {device or ''}".strip())


def _settings(search_space: Mapping[str, Any]) -> Mapping[str, Any]:
    options = search_space.get("extra_options") or {}
    beside = [name for name in search_space if name != "extra_options"] + [
        name for name in options if name != "FastFinetune"
    ]
    settings = options.get("FastFinetune")
    if beside or not isinstance(settings, Mapping) or not settings:
        found = f"got {beside[0]!r}" if beside else "got none of them"
        raise RecipeError(
            "advanced_fastft_search takes search_space = {'extra_options': {'FastFinetune': {NumIterations and "
            f"LearningRate}}}}, {found}"
        )
    return settings


def _range(name: str, values: Any) -> Parameter:
    if isinstance(values, Choice | IntRange | Uniform):
        return values
    if not isinstance(values, list | tuple) or not values:
        raise RecipeError(f"the bounds of {name} must be a list of numbers, got {values!r}")
    for value in values:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole if name == "NumIterations" else whole or isinstance(value, float)) or value <= 0:
            raise RecipeError(f"the bounds of {name} must be numbers above 0, got {value!r}")
    if name == "NumIterations":
        return IntRange(min(values), max(values))
    return Uniform(float(min(values)), float(max(values)), log=True)
