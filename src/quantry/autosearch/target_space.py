"""The default search space: what quantry already knows about a target, and then everything that may improve on it.

The order of its trials is the order in which a user would try things::

    recommended recipes      the recommended recipes of the target, and the user's recipe; tried whatever the limits
    presets                  every other preset that the target accepts, cheapest first
    one change at a time     ranges, equalization, tuning, worst layers: the first recipe with one thing changed
    what helped, together    the single changes that improved the first recipe, added one after another
    slow presets             those that tune weights, choose types, are simulated, or have fewer than 8 bits
    combinations             drawn by the sampler, which has learned from all of the above
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quantry.autosearch import variants
from quantry.autosearch.layer_ranking import RankedLayer
from quantry.autosearch.parameter import Choice, Parameter, Uniform
from quantry.autosearch.space import Assignment, Space, with_fields
from quantry.errors import RecipeError
from quantry.facts.operators import MATRIX_PRODUCTS
from quantry.recipe import (
    DataType,
    LayerTypes,
    MinMax,
    MinMSE,
    Percentile,
    PowerOfTwoScale,
    Recipe,
    TensorSpec,
    find_preset,
)
from quantry.targets import Target

KEPT = "unchanged"
"""The value of a parameter that leaves the chosen recipe as it is."""

RECIPE, LAYERS, SHARE = "recipe", "layers", "layers.share"
"""Parameters that are not paths of a recipe: the recipe to start from, what happens to its worst layers, how many."""

WIDE, FLOAT, ONE_BY_ONE = "in 16 bits", "in float", "one by one"
"""What can happen to the most sensitive layers."""

Ranking = Callable[[Recipe], Sequence[RankedLayer]]

# The most sensitive layers, for each of which the sampler decides separately.
_SINGLE_LAYERS = 6
_BYTE = 8

# A preset for other operators than most of the model's products leaves a model that is nearly float.
_PRODUCTS = ("Conv", "ConvTranspose", *MATRIX_PRODUCTS)
_MOST = 0.5
_SIXTEEN_BITS = {True: DataType.INT16, False: DataType.UINT16}

_DAMPED = (variants.GPTQ, variants.PLAIN_GPTQ)
_TRAINED = (variants.TRAINED_ROUNDING, variants.TRAINED_VALUES)
_TUNINGS = (variants.UNTUNED, *_DAMPED, variants.CORRECTED_GPTQ, *_TRAINED)
_RANGES = (
    variants.MIN_MAX,
    variants.MIN_MSE_AFTER,
    variants.MIN_MSE,
    variants.BEST_PERCENTILE,
    variants.PERCENTILE,
    variants.ENTROPY,
)
_EQUALIZATIONS = (
    variants.NO_SMOOTH_QUANT,
    variants.BARE,
    variants.CROSS_LAYER,
    variants.SMOOTH,
    variants.CROSS_LAYER_AND_SMOOTH,
    variants.GROUPS,
)


def single_layer(place: int) -> str:
    """Return the parameter of one of the most sensitive layers, counted from 1."""
    return f"layer {place}"


@dataclass(frozen=True)
class TargetRecipes:
    """Builds the recipes of the default space.

    Attributes:
        target: The target; recipes that it refuses are invalid, unless they are those that the space starts from.
        recipes: Recipes by name, adapted to the target.
        named: The user named the target, so recipes and models name it too.
        ranking: Returns the layers of a recipe, most sensitive first; called when a trial first needs it.
    """

    target: Target
    recipes: Mapping[str, Recipe]
    ranking: Ranking | None = None
    named: bool = False

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe of an assignment.

        Raises:
            RecipeError: The combination is invalid, or the target refuses it.
        """
        return self._built(assignment, self.ranking)

    def expected(self, assignment: Assignment) -> Recipe:
        """Return a recipe that takes as long as that of an assignment, without ranking layers, which takes time.

        Raises:
            RecipeError: The combination is invalid, or the target refuses it.
        """
        stand_in = RankedLayer(f"{assignment.get(SHARE)} of the layers", 0.0, ends=False)
        return self._built(assignment, None if self.ranking is None else lambda _: (stand_in,))

    def _built(self, assignment: Assignment, ranking: Ranking | None) -> Recipe:
        base = self.recipes[assignment[RECIPE]]
        changes = {
            path: value for path, value in assignment.items() if not _is_special(path) and not _is_kept(path, value)
        }
        recipe = with_fields(base, changes) if changes else base
        recipe = recipe if ranking is None else _with_layers(base, recipe, assignment, ranking)
        if recipe == base:
            return base
        adapted = adapted_recipe(self.target, recipe, named=self.named)
        conflicts = self.target.conflicts(adapted)
        if conflicts:
            raise RecipeError(f"the target {self.target.name} refuses it: {conflicts[0]}")
        return adapted


def _with_layers(base: Recipe, recipe: Recipe, assignment: Assignment, ranking: Ranking) -> Recipe:
    """Return a recipe with other types for its most sensitive layers."""
    how = assignment.get(LAYERS, KEPT)
    if how == KEPT:
        return recipe
    if recipe.equalize.groups is not None:
        raise RecipeError("layers cannot have types of their own where convolutions are split into groups")
    ranked = ranking(base)
    if how == ONE_BY_ONE:
        chosen = [(layer, assignment[single_layer(place)]) for place, layer in enumerate(ranked[:_SINGLE_LAYERS], 1)]
    else:
        count = max(1, round(assignment[SHARE] * len(ranked)))
        chosen = [(layer, how) for layer in ranked[:count]]
    entries = tuple(entry for layer, kind in chosen for entry in _types(layer, kind, recipe))
    return replace(recipe, plan=replace(recipe.plan, layers=(*recipe.plan.layers, *entries)))


def _is_special(path: str) -> bool:
    return path in (RECIPE, LAYERS, SHARE) or path.startswith("layer ")


def _is_kept(path: str, value: Any) -> bool:
    # Text is a value of no other field.
    return isinstance(value, str) and value == KEPT and path != RECIPE


def _types(layer: RankedLayer, kind: str, recipe: Recipe) -> Iterator[LayerTypes]:
    """Yield the entry of a layer in `PlanOptions.layers`; none if it stays as it is."""
    if kind == FLOAT:
        yield LayerTypes(match=(layer.node,), keep_float=True)
    elif kind == WIDE:
        activation = _wide(recipe.plan.activation)
        yield LayerTypes(
            match=(layer.node,),
            activation=activation,
            output=activation if layer.ends else None,
            weight=_wide(replace(recipe.plan.weight, dtype=DataType.INT8, symmetric=True)),
        )


def _wide(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype=_SIXTEEN_BITS[spec.dtype.is_signed])


def adapted_recipe(target: Target, recipe: Recipe, *, named: bool) -> Recipe:
    """Return a recipe with what the target's rules ask for.

    Args:
        target: The target.
        recipe: The recipe.
        named: The user named the target, so the recipe names it too. Otherwise it stays as it is if that breaks no
            rule: `quantize` runs it like this under the same name.
    """
    if named:
        return target.adapted(recipe)
    return recipe if not target.conflicts(recipe) else replace(target.adapted(recipe), target=recipe.target)


def target_space(
    target: Target,
    recipe: Recipe | None = None,
    ranking: Ranking | None = None,
    *,
    named: bool = False,
    operators: Mapping[str, int] | None = None,
) -> Space:
    """Return the default space of a target.

    Args:
        target: Whose recommended recipes and presets are tried.
        recipe: The user's recipe, tried after the recommended ones and widened like them; None if there is none.
        ranking: Returns the layers of a recipe, most sensitive first; None leaves single layers as they are.
        named: The user named the target, so recipes and models name it too.
        operators: How many nodes of each type the model has. Presets for operators that it does not have are omitted,
            and those for few of its products come late. None is unknown.
    """

    def adapted(recipe: Recipe) -> Recipe:
        return adapted_recipe(target, recipe, named=named)

    recipes = {name: find_preset(name).recipe for name in target.recommended}
    if recipe is not None and recipe not in recipes.values():
        name = recipe.name if recipe.name not in recipes else f"{recipe.name} as given"
        recipes[name] = recipe
    recipes = {name: adapted(start) if named else start for name, start in recipes.items()}
    starts = tuple(recipes)
    presets = {name: adapted(find_preset(name).recipe) for name in target.presets}
    shares = {name: _quantized_share(preset, operators) for name, preset in presets.items()}
    others = {
        name: preset
        for name, preset in presets.items()
        if name not in recipes and preset not in recipes.values() and shares[name] > 0
    }
    build = TargetRecipes(target, recipes | others, ranking, named=named)
    parameters = _parameters(build, starts)
    kept = {name: KEPT for name, parameter in parameters.items() if set(parameter.only_if) == {RECIPE}}
    first = [{RECIPE: name, **kept} for name in starts]
    by_cost = sorted(others, key=lambda name: _cost(others[name]))
    late = [name for name in by_cost if _is_late(others[name]) or shares[name] < _MOST]
    early: list[Assignment] = [{RECIPE: name} for name in by_cost if name not in late]
    if recipes[starts[0]].equalize.smooth is not None:
        early.append({**first[0], "equalize": variants.NO_SMOOTH_QUANT.value(recipes[starts[0]])})
    early += _one_change_at_a_time(parameters, first[0], recipes[starts[0]])
    return Space(
        parameters,
        build,
        name=target.name,
        first=first,
        always=len(first),
        suggestions=[*early, *({RECIPE: name} for name in late)],
        combine_after=len(early),
        target=target,
    )


def _quantized_share(recipe: Recipe, operators: Mapping[str, int] | None) -> float:
    """Return which share of a model's products a recipe selects by their operators; 1 if that is unknown."""
    chosen = recipe.plan.selection.operators
    counts = {name: count for name, count in (operators or {}).items() if name in _PRODUCTS}
    if not chosen or not counts:
        return 1.0
    return sum(count for name, count in counts.items() if name in chosen) / sum(counts.values())


def _cost(recipe: Recipe) -> tuple[float, ...]:
    """Return the place of a preset: what makes its trial slow, then how likely it is to be far from the float model."""
    trained = any(hasattr(step, "iterations") for step in recipe.tune.steps)
    activation, weight = recipe.plan.activation.dtype, recipe.plan.weight.dtype
    simulated = activation.is_block or weight.is_block
    slow = trained, recipe.mix.mixed is not None, simulated, weight.bits < _BYTE, bool(recipe.tune.steps)
    return *slow, -activation.bits - weight.bits


def _is_late(recipe: Recipe) -> bool:
    """Return whether a preset tunes weights, chooses types, has types that no kernel computes with, or few bits.

    Those take as long as a change of the recommended recipe, and are less likely to improve on it.
    """
    return any(_cost(recipe)[:-1])


def _parameters(build: TargetRecipes, starts: tuple[str, ...]) -> dict[str, Parameter]:
    """Return the parameters: the recipe, and what may be changed in one that the search starts from."""
    base = build.recipes[starts[0]]
    powers = isinstance(base.plan.activation.scale, PowerOfTwoScale)
    own = {RECIPE: list(starts)}

    def choice(*values: Any) -> Choice:
        return Choice((KEPT, *values), only_if=own)

    parameters: dict[str, Parameter] = {
        RECIPE: Choice(tuple(build.recipes)),
        "scale.activation": choice(*variants.values(base, *_RANGES)),
        "scale.activation.percentile": Uniform(99.5, 100.0, only_if={"scale.activation": Percentile()}),
        "equalize": choice(*variants.values(base, *_EQUALIZATIONS)),
        "tune.steps": choice(*variants.values(base, *_TUNINGS)),
        "tune.steps.0.damping": Uniform(
            0.003, 1.0, log=True, only_if={"tune.steps": list(variants.values(base, *_DAMPED))}
        ),
    }
    if not powers:
        parameters["scale.weight"] = choice(MinMax(), MinMSE())
    if base.prepare.npu is not None:
        parameters["prepare.npu.sigmoid_to_hard_sigmoid"] = choice(not base.prepare.npu.sigmoid_to_hard_sigmoid)
    if build.ranking is None or not base.plan.activation.dtype.is_integer:
        return parameters
    # Whether the target accepts 16 bits does not depend on the layer.
    wide = build.target.types is None or _wide(base.plan.activation).dtype in build.target.types.activation
    kinds = (WIDE, FLOAT) if wide else (FLOAT,)
    parameters[LAYERS] = choice(*kinds, ONE_BY_ONE)
    parameters[SHARE] = Uniform(0.01, 0.5, log=True, only_if={LAYERS: list(kinds)})
    for place in range(1, _SINGLE_LAYERS + 1):
        parameters[single_layer(place)] = Choice((KEPT, *kinds), only_if={LAYERS: ONE_BY_ONE})
    return parameters


def _one_change_at_a_time(parameters: Mapping[str, Parameter], start: Assignment, base: Recipe) -> Iterator[Assignment]:
    """Yield assignments that differ from a recipe in one thing, what helped most on other models first."""
    trained, damped = variants.values(base, *_TRAINED), variants.values(base, *_DAMPED)
    if LAYERS in parameters:
        for kind in (WIDE, FLOAT):
            if kind in parameters[LAYERS].values:  # type: ignore[union-attr]  # it is a Choice
                yield from ({**start, LAYERS: kind, SHARE: share} for share in (0.05, 0.2))
    for name in ("equalize", "scale.activation", "tune.steps", "scale.weight", "prepare.npu.sigmoid_to_hard_sigmoid"):
        if name not in parameters:
            continue
        for value in parameters[name].values[1:]:  # type: ignore[union-attr]  # it is a Choice
            if name == "tune.steps" and value in trained:
                continue
            changed = {**start, name: value}
            if value == Percentile():
                changed["scale.activation.percentile"] = 99.99
            if value in damped:
                changed["tune.steps.0.damping"] = value[0].damping
            yield changed
