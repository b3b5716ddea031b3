"""The one table of variants: single changes of a recipe that searches, `auto` and predefined spaces try."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from quantry.autosearch.space import with_fields
from quantry.recipe import (
    AdaQuant,
    AdaRound,
    BestPercentile,
    BiasCorrection,
    ChannelGroups,
    CrossLayer,
    Entropy,
    EqualizeOptions,
    Gptq,
    LayerWisePercentile,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    PerTensor,
    PowerOfTwoScale,
    Recipe,
    SmoothQuant,
)


@dataclass(frozen=True)
class Variant:
    """One change of a recipe.

    Attributes:
        name: What it is, in a few words.
        path: The field of the recipe that it sets.
        value: From the recipe to the new value of that field.
        applies: Whether it makes sense for a recipe.
        is_free: Whether it costs nothing at run time.
        is_simple: Whether `auto` tries it: nothing is added to the recipe but another setting of what is there.
        helps_often: Whether it helped models with a usual effort; see benchmarks/README.md.
    """

    name: str
    path: str
    value: Callable[[Recipe], Any]
    applies: Callable[[Recipe], bool] = lambda _: True
    is_free: bool = True
    is_simple: bool = False
    helps_often: bool = False

    def applied(self, recipe: Recipe) -> Recipe:
        """Return the changed recipe; the same if it does not apply."""
        return with_fields(recipe, {self.path: self.value(recipe)}) if self.applies(recipe) else recipe


def _has_powers(recipe: Recipe) -> bool:
    return isinstance(recipe.plan.activation.scale, PowerOfTwoScale)


def _has_scale_per_tensor(recipe: Recipe) -> bool:
    # Per-channel weights already have a scale for each channel, so groups would not change the model.
    return isinstance(recipe.plan.weight.granularity, PerTensor) and recipe.plan.weight.dtype.is_integer


def _several_equalizations(recipe: Recipe) -> bool:
    # Two may do the same harm, so one alone shows nothing.
    options = recipe.equalize
    return sum(one is not None for one in (options.smooth, options.cross_layer, options.joint)) > 1


def _without(part: str) -> Variant:
    names = {"rotate": "rotation", "smooth": "SmoothQuant", "cross_layer": "cross-layer equalization"}
    return Variant(
        f"no {names.get(part, 'joint equalization')}",
        "equalize",
        lambda recipe: replace(recipe.equalize, **{part: None}),
        lambda recipe: getattr(recipe.equalize, part) is not None,
        is_simple=True,
    )


def _equalized(name: str, options: EqualizeOptions, applies: Callable[[Recipe], bool] = lambda _: True) -> Variant:
    return Variant(name, "equalize", lambda _: options, applies)


def _ranges(name: str, method: Any, *, powers: bool | None = None, is_simple: bool = False) -> Variant:
    """Return ranges by a method, for scales that are powers of two, others, or both."""
    return Variant(
        f"ranges by {name}",
        "scale.activation",
        lambda _: method,
        lambda recipe: powers is None or _has_powers(recipe) == powers,
        is_simple=is_simple,
    )


def _tuned(name: str, *steps: Any) -> Variant:
    return Variant(name, "tune.steps", lambda _: steps)


def _gptq_with(name: str, change: Callable[[Gptq], Gptq]) -> Variant:
    return Variant(
        name,
        "tune.steps",
        lambda recipe: tuple(change(step) if isinstance(step, Gptq) else step for step in recipe.tune.steps),
        lambda recipe: any(isinstance(step, Gptq) for step in recipe.tune.steps),
        is_simple=True,
    )


# 64 samples and this damping are those of the recommended recipes; see recipe/recommended.py.
_GPTQ, _PLAIN_GPTQ = Gptq(samples=64, damping=0.1), Gptq(samples=64, compensate=False)

# Equalization.
NO_SMOOTH_QUANT = _without("smooth")
BARE = _equalized("nothing equalized", EqualizeOptions())
CROSS_LAYER = _equalized("cross-layer equalization", EqualizeOptions(CrossLayer()))
SMOOTH = _equalized("SmoothQuant", EqualizeOptions(smooth=SmoothQuant()))
CROSS_LAYER_AND_SMOOTH = _equalized(
    "cross-layer equalization and SmoothQuant", EqualizeOptions(CrossLayer(), smooth=SmoothQuant())
)
GROUPS = _equalized("groups of channels", EqualizeOptions(CrossLayer(), groups=ChannelGroups()), _has_scale_per_tensor)
NO_EQUALIZATION = Variant(
    "no equalization",
    "equalize",
    lambda recipe: replace(recipe.equalize, smooth=None, cross_layer=None, joint=None),
    _several_equalizations,
    is_simple=True,
    helps_often=True,
)

# Ranges of activations.
MIN_MAX = _ranges("MinMax", MinMax(), powers=False, is_simple=True)
MIN_MSE = _ranges("MinMSE", MinMSE(), is_simple=True)
MIN_MSE_AFTER = _ranges("MinMSE after functions", MinMSE(after_functions=True))
BEST_PERCENTILE = _ranges("BestPercentile", BestPercentile(), is_simple=True)
PERCENTILE = _ranges("Percentile", Percentile())
PERCENTILE_9999 = _ranges("Percentile 99.99", Percentile(99.99), powers=False)
PERCENTILE_99999 = _ranges("Percentile 99.999", Percentile(99.999), powers=False)
LAYER_WISE = _ranges("LayerWisePercentile", LayerWisePercentile(), powers=False)
ENTROPY = _ranges("Entropy", Entropy(), powers=False)
NON_OVERFLOW = _ranges("NonOverflow", NonOverflow(), powers=True)

# Tuning.
UNTUNED = _tuned("no tuning")
GPTQ = _tuned("GPTQ", _GPTQ)
PLAIN_GPTQ = _tuned("GPTQ that does not compensate", _PLAIN_GPTQ)
CORRECTED_GPTQ = _tuned("bias correction and GPTQ", BiasCorrection(), _GPTQ)
# 300 iterations get most of the gain of the 1000 that the presets have.
TRAINED_ROUNDING = _tuned("AdaRound", AdaRound(samples=128, iterations=300))
TRAINED_VALUES = _tuned("AdaQuant", AdaQuant(samples=128, iterations=300))

VARIANTS: tuple[Variant, ...] = (
    NO_EQUALIZATION,
    _without("rotate"),
    NO_SMOOTH_QUANT,
    _without("cross_layer"),
    _without("joint"),
    BARE,
    CROSS_LAYER,
    SMOOTH,
    CROSS_LAYER_AND_SMOOTH,
    GROUPS,
    MIN_MSE,
    BEST_PERCENTILE,
    MIN_MAX,
    MIN_MSE_AFTER,
    PERCENTILE,
    PERCENTILE_9999,
    PERCENTILE_99999,
    LAYER_WISE,
    ENTROPY,
    NON_OVERFLOW,
    UNTUNED,
    GPTQ,
    PLAIN_GPTQ,
    CORRECTED_GPTQ,
    TRAINED_ROUNDING,
    TRAINED_VALUES,
    _gptq_with("GPTQ that does not compensate for rounded inputs", lambda step: replace(step, compensate=False)),
    _gptq_with("GPTQ with less damping", lambda step: replace(step, damping=step.damping / 10)),
    _gptq_with("GPTQ with more damping", lambda step: replace(step, damping=step.damping * 10)),
    Variant(
        "bias correction",
        "tune.steps",
        lambda recipe: (*recipe.tune.steps, BiasCorrection()),
        lambda recipe: (
            bool(recipe.tune.steps) and not any(isinstance(step, BiasCorrection) for step in recipe.tune.steps)
        ),
        is_simple=True,
    ),
)
"""Every variant; the order is that of `auto`."""


def variants(*paths: str) -> Iterator[Variant]:
    """Yield the variants that set one of these fields.

    Args:
        paths: Dotted paths of fields of a recipe.
    """
    return (variant for variant in VARIANTS if variant.path in paths)


def values(base: Recipe, *chosen: Variant) -> tuple[Any, ...]:
    """Return the values that variants give their field, each once, without those that do not apply to a recipe.

    Args:
        base: The recipe.
        chosen: The variants.
    """
    return tuple(dict.fromkeys(variant.value(base) for variant in chosen if variant.applies(base)))
