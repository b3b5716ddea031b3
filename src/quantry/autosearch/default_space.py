"""What is tried when the user names nothing."""

from typing import Any

from quantry.autosearch.space import Space
from quantry.recipe import (
    CrossLayer,
    Entropy,
    LayerWisePercentile,
    Method,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    PowerOfTwoScale,
    Recipe,
)

_FLOAT_SCALES: tuple[Method, ...] = (
    MinMax(),
    Percentile(99.99),
    Percentile(99.999),
    LayerWisePercentile(),
    MinMSE(),
    Entropy(),
)
_POWER_OF_TWO_SCALES: tuple[Method, ...] = (MinMSE(), NonOverflow())


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
