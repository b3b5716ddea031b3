"""What `auto` tries: fixes from the diagnosis, variants of the recipe, and tuning."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from quantry.autosearch import with_fields
from quantry.autosearch.variants import Variant, variants
from quantry.diagnosis import Diagnosis, Fix
from quantry.errors import RecipeError
from quantry.evaluate.levels import HALF_BIT
from quantry.recipe import DataType, Recipe, TensorTypes, TuneOptions, find_preset
from quantry.targets import Target

# A fix that costs nothing at run time is tried before one that costs something and gains up to this many times as much.
_FREE_FACTOR = 2.0

_WIDE = {DataType.INT8: DataType.INT16, DataType.UINT8: DataType.UINT16}


@dataclass(frozen=True)
class Candidate:
    """A change of a recipe to try.

    Attributes:
        label: What is tried, in a few words.
        change: From the best recipe so far to the one to try; raises `RecipeError` if it does not apply.
        is_free: Whether it costs nothing at run time compared with the recipe it is applied to.
        is_cheap: Whether it costs hardly anything at run time, so that a small gain is worth it.
        causes: Titles of the findings that suggested it.
        pieces: How many more pieces its float nodes cut the quantized graph into.
    """

    label: str
    change: Callable[[Recipe], Recipe]
    is_free: bool = True
    is_cheap: bool = True
    causes: tuple[str, ...] = ()
    pieces: int = 0

    @classmethod
    def whole(cls, label: str, recipe: Recipe) -> "Candidate":
        """Return a recipe that does not depend on the best one.

        Args:
            label: What it is.
            recipe: The recipe.
        """
        return cls(label, lambda _: recipe)

    @classmethod
    def of_variant(cls, variant: Variant) -> "Candidate":
        """Return a row of the table of variants.

        Args:
            variant: The variant.
        """
        return cls(variant.name, variant.applied, is_free=variant.is_free)


def recommended(target: Target) -> Recipe:
    """Return the recipe that a target recommends."""
    return find_preset(target.recommended[0]).recipe


def plain(target: Target) -> Recipe:
    """Return the simplest preset with the types that a target recommends: no search, no tuning.

    Args:
        target: The target.
    """
    best = recommended(target)
    types = (best.plan.activation, best.plan.weight)
    presets = [find_preset(name).recipe for name in target.presets]
    same = [recipe for recipe in presets if (recipe.plan.activation, recipe.plan.weight) == types]
    return min(same or [best], key=lambda recipe: (len(recipe.tune.steps), recipe.equalize.smooth is not None))


def apply_fix(recipe: Recipe, fix: Fix) -> Recipe:
    """Return a recipe with a fix; the same recipe if it has it already.

    Args:
        recipe: The recipe.
        fix: The fix.

    Raises:
        RecipeError: The result is no valid recipe.
    """
    changes = dict(fix.fields)
    excluded = recipe.plan.selection.exclude
    nodes = tuple(name for name in fix.float_nodes if name not in excluded)
    if nodes:
        changes["plan.selection.exclude"] = (*excluded, *nodes)
    if fix.wide_tensors:
        spec = recipe.plan.activation
        if spec.dtype not in _WIDE:
            raise RecipeError(f"only 8-bit activations can get 16 bits, got {spec.dtype.value}; in a fix")
        wide = TensorTypes(fix.wide_tensors, replace(spec, dtype=_WIDE[spec.dtype]))
        if wide not in recipe.plan.tensors:
            changes["plan.tensors"] = (*recipe.plan.tensors, wide)
    if fix.steps:
        changes["tune.steps"] = (*recipe.tune.steps, *fix.steps)
    return with_fields(recipe, changes) if changes else recipe


def tuned_with(recipe: Recipe, tuning: TuneOptions) -> Recipe:
    """Return a recipe with the steps of a tuning before its own.

    Args:
        recipe: The recipe.
        tuning: The tuning.
    """
    more = tuple(step for step in recipe.tune.steps if step not in tuning.steps)
    return replace(recipe, tune=TuneOptions((*tuning.steps, *more)))


def simplifications(*, thorough: bool) -> Iterator[Candidate]:
    """Yield variants that leave out a part of a recipe, or find ranges in another way.

    Args:
        thorough: Whether to yield those as well that helped no model yet.
    """
    for variant in variants("equalize", "scale.activation"):
        if variant.is_simple and (thorough or variant.helps_often):
            yield Candidate.of_variant(variant)


def tunings() -> Iterator[Candidate]:
    """Yield other settings of GPTQ, and bias correction after it."""
    return (Candidate.of_variant(variant) for variant in variants("tune.steps") if variant.is_simple)


def fixes(diagnosis: Diagnosis, without: tuple[type, ...] = ()) -> Iterator[Candidate]:
    """Yield the fixes that a diagnosis suggests, the largest expected gain first; several findings may suggest one.

    Args:
        diagnosis: The diagnosis.
        without: Types of tuning steps that are not added.
    """
    suggested = [(finding.title, fix, finding.cost) for finding in diagnosis.findings for fix in finding.fixes]
    general = diagnosis.general_fixes
    for number, fix in enumerate(general):
        # Their order stays: few layers come before many that gain little more.
        later = [other.expected or 0.0 for other in general[number:]]
        suggested.append(("", fix, None if fix.is_free and fix.expected is None else max(later)))

    def order(entry: tuple[str, Fix, float | None]) -> tuple[float, bool]:
        _, fix, gain = entry
        # What costs nothing and is not measured comes first, and so does a cause whose cost is not known.
        worth = gain if gain is None or not fix.is_free else _FREE_FACTOR * gain
        rank = -math.inf if worth is None else HALF_BIT * fix.pieces - worth
        return rank, not fix.is_free

    yielded: list[Fix] = []
    for _, fix, _ in sorted(suggested, key=order):
        change = _change_of(fix)
        if change not in yielded and not any(isinstance(step, without) for step in fix.steps):
            yielded.append(change)
            causes = tuple(title for title, other, _ in suggested if title and _contains(change, other))
            is_cheap = fix.is_free or fix.is_cheap
            yield Candidate(fix.label, partial(_with_fix, fix=fix), fix.is_free, is_cheap, causes, fix.pieces)


def _change_of(fix: Fix) -> Fix:
    """Return what a fix changes, without what depends on who suggested it."""
    return replace(fix, label="", expected=None, pieces=0, depth=0, is_cheap=False)


def _contains(change: Fix, fix: Fix) -> bool:
    """Return whether a change does what a fix does: the same, or the same and more nodes in float."""
    nodes = set(fix.float_nodes)
    return _change_of(fix) == change or bool(nodes and nodes <= set(change.float_nodes) and not fix.wide_tensors)


def _with_fix(recipe: Recipe, fix: Fix) -> Recipe:
    return apply_fix(recipe, fix)
