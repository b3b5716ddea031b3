"""Predefined search spaces around a recipe: "calibration" and "accuracy"."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quantry.autosearch import variants
from quantry.autosearch.space import Space
from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import (
    CrossLayer,
    EqualizeOptions,
    FitPowers,
    JointEqualization,
    MinMax,
    MinMSE,
    PowerOfTwoScale,
    Recipe,
    Rotation,
    SmoothQuant,
)

_RANGES = (
    variants.MIN_MAX,
    variants.PERCENTILE_9999,
    variants.PERCENTILE_99999,
    variants.LAYER_WISE,
    variants.MIN_MSE,
    variants.MIN_MSE_AFTER,
    variants.BEST_PERCENTILE,
    variants.ENTROPY,
    variants.NON_OVERFLOW,
)


def calibration_space(base: Recipe) -> Space:
    """Return the calibration methods that suit a recipe's scales, with and without cross-layer equalization.

    Args:
        base: Sets everything else: data types, granularity, format, target.
    """
    has_powers = isinstance(base.plan.activation.scale, PowerOfTwoScale)
    fields: dict[str, Any] = {
        "equalize.cross_layer": [None, base.equalize.cross_layer or CrossLayer()],
        "scale.activation": list(variants.values(base, *_RANGES)),
        "scale.weight": [base.scale.weight] if has_powers else [MinMax(), MinMSE()],
    }
    return Space.of(base, fields, name=base.name)


def accuracy_space(base: Recipe) -> Space:
    """Return the techniques that need no training: equalization, three calibration methods, GPTQ in two variants.

    The recommended recipe is tried first, so that even a short search never ends with something worse by its own
    metric. With per-tensor weights, convolutions in groups of channels are also tried; if the target replaces Sigmoid,
    so is keeping it. GPTQ takes most of the time and comes last in a grid. Sums read by a LayerNormalization and, with
    power-of-two scales, final pools stay float in all configurations: nothing else makes up for the error of a single
    int8 scale there. No trial falls back to a simpler recipe by itself: the simpler ones are trials too.

    Args:
        base: Sets everything else: data types, granularity, format, target.
    """
    on_npu = isinstance(base.plan.activation.scale, PowerOfTwoScale)
    joint = EqualizeOptions(smooth=SmoothQuant(), joint=JointEqualization())
    if on_npu:
        joint = replace(joint, powers=FitPowers(), rotate=Rotation())
    equalizations = [
        *variants.values(base, variants.BARE, variants.CROSS_LAYER),
        *(replace(joint, smooth=None), joint),
        *variants.values(base, variants.GROUPS),
    ]
    # The first variant compensates for the quantization error of the inputs: classifiers gain, some detectors lose.
    tunings = variants.values(base, variants.UNTUNED, variants.GPTQ, variants.PLAIN_GPTQ)
    ranges = variants.values(base, variants.MIN_MSE, variants.MIN_MSE_AFTER, variants.BEST_PERCENTILE)
    fields: dict[str, Any] = {
        "equalize": equalizations,
        "scale.activation": list(ranges),
        "tune.steps": list(tunings),
    }
    first: dict[str, Any] = {"equalize": joint, "scale.activation": ranges[1], "tune.steps": tunings[1]}
    if base.prepare.npu is not None and base.prepare.npu.sigmoid_to_hard_sigmoid:
        fields = {"prepare.npu.sigmoid_to_hard_sigmoid": [False, True], **fields}
        first = {"prepare.npu.sigmoid_to_hard_sigmoid": False, **first}
    plan = replace(base.plan, float_residuals=True, float_final_pools=on_npu or base.plan.float_final_pools)
    # Like the recommended recipe for CPUs: a product with a constant number is not rounded a second time.
    plain = replace(base, plan=plan, scale=replace(base.scale, keep_levels=not on_npu))
    return Space.of(plain, fields, name=f"{base.name} accuracy", first=[first])


NAMED_SPACES: dict[str, Callable[[Recipe], Space]] = {"calibration": calibration_space, "accuracy": accuracy_space}
"""Spaces by name; "default" is `target_space`, which needs a target instead of a recipe."""


def named_space(name: str, base: Recipe) -> Space:
    """Return a predefined space.

    Args:
        name: One of `NAMED_SPACES`.
        base: Sets everything that the space does not vary.

    Raises:
        RecipeError: There is no such space.
    """
    if name not in NAMED_SPACES:
        raise RecipeError(
            f"a space must be one of {('default', *NAMED_SPACES)}, got {name!r}{nearest_spelling(name, NAMED_SPACES)}"
        )
    return NAMED_SPACES[name](base)
