"""What `auto` tries: recipes to start from, simpler variants, fixes from the diagnosis, and tuning."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quantry.auto.gain import SPLIT_GAIN
from quantry.autosearch import with_fields
from quantry.diagnosis import Diagnosis, Fix
from quantry.errors import RecipeError
from quantry.recipe import (
    BestPercentile,
    BiasCorrection,
    DataType,
    Gptq,
    MinMax,
    MinMSE,
    PowerOfTwoScale,
    Recipe,
    TensorTypes,
    TuneOptions,
    find_preset,
)
from quantry.targets import Target

# A fix that costs nothing at run time is tried before one that costs something and gains up to this many times as much.
_FREE_FACTOR = 2.0

_WIDE = {DataType.INT8: DataType.INT16, DataType.UINT8: DataType.UINT16}


@dataclass(frozen=True)
class Proposal:
    """A recipe to try.

    Attributes:
        label: What is tried, in a few words.
        recipe: The recipe.
        is_free: Whether it costs nothing at run time compared with the recipe it was derived from.
        cause: Title of the finding that suggested it; empty if none did.
        pieces: How many more pieces its float nodes cut the quantized graph into.
        parts: Labels of the changes that are tried together; empty for a single one.
        is_cheap: Whether it costs hardly anything at run time, so that a small gain is worth it.
    """

    label: str
    recipe: Recipe
    is_free: bool = True
    cause: str = ""
    pieces: int = 0
    parts: tuple[str, ...] = ()
    is_cheap: bool = True

    @classmethod
    def together(cls, proposals: Sequence["Proposal"]) -> "Proposal":
        """Return all changes as one.

        Args:
            proposals: At least one. Each was derived from the recipe of the one before it.
        """
        if len(proposals) == 1:
            return proposals[0]
        parts = tuple(proposal.label for proposal in proposals)
        return cls(
            label="; ".join(parts),
            recipe=proposals[-1].recipe,
            is_free=all(proposal.is_free for proposal in proposals),
            pieces=sum(proposal.pieces for proposal in proposals),
            parts=parts,
            is_cheap=all(proposal.is_cheap for proposal in proposals),
        )


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
    known = recipe.plan.selection.exclude
    nodes = tuple(name for name in fix.float_nodes if name not in known)
    if nodes:
        changes["plan.selection.exclude"] = (*known, *nodes)
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


def untuned(recipe: Recipe) -> Recipe:
    """Return a recipe without its tuning steps."""
    return replace(recipe, tune=TuneOptions())


def unequalized(recipe: Recipe) -> Iterator[Proposal]:
    """Yield a recipe without any equalization, if it has several; two may do the same harm, so one alone shows nothing.

    Args:
        recipe: The recipe.
    """
    equalize = recipe.equalize
    if sum(one is not None for one in (equalize.smooth, equalize.cross_layer, equalize.joint)) > 1:
        none = replace(equalize, smooth=None, cross_layer=None, joint=None)
        yield Proposal("no equalization", replace(recipe, equalize=none))


def simpler(recipe: Recipe) -> Iterator[Proposal]:
    """Yield variants of a recipe: one part removed, or ranges found in another way.

    Args:
        recipe: The recipe.
    """
    equalize, method = recipe.equalize, recipe.scale.activation
    if recipe.tune.steps:
        yield Proposal("no tuning", untuned(recipe))
    yield from unequalized(recipe)
    if equalize.rotate is not None:
        yield Proposal("no rotation", replace(recipe, equalize=replace(equalize, rotate=None)))
    if equalize.smooth is not None:
        yield Proposal("no SmoothQuant", replace(recipe, equalize=replace(equalize, smooth=None)))
    if equalize.cross_layer is not None:
        yield Proposal("no cross-layer equalization", replace(recipe, equalize=replace(equalize, cross_layer=None)))
    if equalize.joint is not None:
        yield Proposal("no joint equalization", replace(recipe, equalize=replace(equalize, joint=None)))
    powers = isinstance(recipe.plan.activation.scale, PowerOfTwoScale)
    others = (MinMSE(), BestPercentile()) if powers else (MinMSE(), BestPercentile(), MinMax())
    for other in others:
        if other != method:
            label = f"ranges by {type(other).__name__}"
            yield Proposal(label, replace(recipe, scale=replace(recipe.scale, activation=other)))


def fixes(recipe: Recipe, diagnosis: Diagnosis) -> Iterator[Proposal]:
    """Yield the fixes that a diagnosis suggests, the largest expected gain first.

    Args:
        recipe: The recipe that was diagnosed.
        diagnosis: The diagnosis.
    """
    found = [(finding.title, fix, finding.cost) for finding in diagnosis.findings for fix in finding.fixes]
    general = diagnosis.general_fixes
    for number, fix in enumerate(general):
        # Their order stays: few layers come before many that gain little more.
        later = [other.expected or 0.0 for other in general[number:]]
        found.append(("", fix, None if fix.is_free and fix.expected is None else max(later)))

    def place(entry: tuple[str, Fix, float | None]) -> tuple[float, bool]:
        _, fix, gain = entry
        # What costs nothing and is not measured comes first, and so does a cause whose cost is not known.
        worth = gain if gain is None or not fix.is_free else _FREE_FACTOR * gain
        rank = -math.inf if worth is None else SPLIT_GAIN * fix.pieces - worth
        return rank, not fix.is_free

    for cause, fix, _ in sorted(found, key=place):
        try:
            changed = apply_fix(recipe, fix)
        except RecipeError:
            continue  # such as 16 bits for a type that has none
        cheap = fix.is_free or fix.is_cheap
        yield Proposal(fix.label, changed, fix.is_free, cause, fix.pieces, is_cheap=cheap)


def tuned_again(recipe: Recipe, tuning: TuneOptions) -> Iterator[Proposal]:
    """Yield a recipe with the tuning that was dropped before other causes of error were removed.

    Args:
        recipe: The recipe.
        tuning: The tuning of the recipe at the start.
    """
    if tuning.steps and not recipe.tune.steps:
        yield Proposal("tuning again", replace(recipe, tune=tuning))


def tunings(recipe: Recipe) -> Iterator[Proposal]:
    """Yield other settings of GPTQ, and bias correction after it.

    Args:
        recipe: The recipe.
    """
    steps = recipe.tune.steps
    for place, step in enumerate(steps):
        if not isinstance(step, Gptq):
            continue
        settings: list[tuple[str, Gptq]] = [
            ("GPTQ that does not compensate for rounded inputs", replace(step, compensate=False)),
            ("GPTQ with less damping", replace(step, damping=step.damping / 10)),
            ("GPTQ with more damping", replace(step, damping=step.damping * 10)),
        ]
        for label, other in settings:
            changed = (*steps[:place], other, *steps[place + 1 :])
            yield Proposal(label, replace(recipe, tune=TuneOptions(changed)))
    if steps and not any(isinstance(step, BiasCorrection) for step in steps):
        yield Proposal("bias correction", replace(recipe, tune=TuneOptions((*steps, BiasCorrection()))))
