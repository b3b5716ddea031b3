"""What is tried when the user names nothing, or only a name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quantry.autosearch.space import Space
from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import (
    BestPercentile,
    ChannelGroups,
    CrossLayer,
    Entropy,
    EqualizeOptions,
    Gptq,
    LayerWisePercentile,
    Method,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    PerTensor,
    PowerOfTwoScale,
    Recipe,
    SmoothQuant,
)

_FLOAT_SCALES: tuple[Method, ...] = (
    MinMax(),
    Percentile(99.99),
    Percentile(99.999),
    LayerWisePercentile(),
    BestPercentile(),
    MinMSE(),
    MinMSE(behind=True),
    Entropy(),
)
_POWER_OF_TWO_SCALES: tuple[Method, ...] = (MinMSE(), MinMSE(behind=True), BestPercentile(), NonOverflow())


def default_space(base: Recipe) -> Space:
    """Return the calibration methods that go with a recipe's scales, with and without equalization of layers.

    Args:
        base: What stays as it is: types, granularity, format, target.
    """
    methods = _POWER_OF_TWO_SCALES if isinstance(base.plan.activation.scale, PowerOfTwoScale) else _FLOAT_SCALES
    fields: dict[str, Any] = {
        "equalize.cross_layer": [None, base.equalize.cross_layer or CrossLayer()],
        "scale.activation": list(methods),
        "scale.weight": [MinMax(), MinMSE()] if methods is _FLOAT_SCALES else [base.scale.weight],
    }
    return Space.of(base, fields, name=base.name)


def accuracy_space(base: Recipe) -> Space:
    """Return the techniques that need no training: equalizations, ranges judged in three ways, GPTQ in two.

    What the recommended recipes do comes first, so that a short search finds nothing worse by its own measure.
    Where weights have one scale, convolutions in groups of channels are tried too, and where the target replaces
    Sigmoid, keeping it. Tuning layers takes most of the time, so that it comes last in a grid. Sums that a
    LayerNormalization reads stay float in all of them: no choice of the others makes up for one int8 scale there.

    Args:
        base: What stays as it is otherwise: types, granularity, format, target.
    """
    smooth = replace(base.equalize, smooth=SmoothQuant())
    equalizations = [EqualizeOptions(), EqualizeOptions(CrossLayer()), smooth]
    if isinstance(base.plan.weight.granularity, PerTensor) and base.plan.weight.dtype.is_integer:
        # Elsewhere weights have scales enough, and the groups would be the same recipe twice.
        equalizations.append(EqualizeOptions(CrossLayer(), groups=ChannelGroups()))
    # The first makes up for errors of the inputs, which classifiers gain by and some detectors lose by.
    rounded = [(Gptq(samples=64, damping=0.1),), (Gptq(samples=64, compensate=False),)]
    behind = MinMSE(behind=True)
    fields: dict[str, Any] = {
        "equalize": equalizations,
        "scale.activation": [MinMSE(), behind, BestPercentile()],
        "tune.steps": [(), *rounded],
    }
    first: dict[str, Any] = {"equalize": smooth, "scale.activation": behind, "tune.steps": rounded[0]}
    if base.prepare.npu is not None and base.prepare.npu.sigmoid_to_hard_sigmoid:
        fields = {"prepare.npu.sigmoid_to_hard_sigmoid": [False, True], **fields}
        first = {"prepare.npu.sigmoid_to_hard_sigmoid": False, **first}
    plain = replace(base, plan=replace(base.plan, float_residuals=True))
    return Space.of(plain, fields, name=f"{base.name} accuracy", first=[first])


NAMED_SPACES: dict[str, Callable[[Recipe], Space]] = {"calibration": default_space, "accuracy": accuracy_space}
"""Spaces that can be asked for by name; the first is the default."""


def named_space(name: str, base: Recipe) -> Space:
    """Return a space by its name.

    Args:
        name: One of `NAMED_SPACES`.
        base: What stays as it is.

    Raises:
        RecipeError: There is no such space.
    """
    if name not in NAMED_SPACES:
        raise RecipeError(
            f"a space must be one of {tuple(NAMED_SPACES)}, got {name!r}{nearest_spelling(name, NAMED_SPACES)}"
        )
    return NAMED_SPACES[name](base)
