"""Calibration methods, one file each: from observed values to the range to represent.

To add one: a new file with a function of ``(observed, options, grid)`` that returns a `Range`, its options in
`quantry.recipe`, and a line in `RANGE_METHODS`. `quantry.testing.range_suite.RangeMethodSuite` tests it.
"""

from collections.abc import Callable
from typing import Any

from quantry.errors import RecipeError
from quantry.numerics.grid import Grid, Range
from quantry.recipe import (
    BestPercentile,
    Distribution,
    Entropy,
    HalfQuadratic,
    LayerWisePercentile,
    Method,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
)
from quantry.scale.ranges.distribution import distribution_range
from quantry.scale.ranges.entropy import entropy_range
from quantry.scale.ranges.min_max import min_max_range
from quantry.scale.ranges.min_mse import min_mse_range
from quantry.scale.ranges.non_overflow import non_overflow_range
from quantry.scale.ranges.percentile import best_percentile_range, layer_wise_percentile_range, percentile_range
from quantry.scale.values import Observed

RangeFunction = Callable[[Observed, Any, Grid], Range]


def _range_of_whole_tensor(observed: Observed, _options: HalfQuadratic, grid: Grid) -> Range:
    # `half_quadratic_groups` finds the zero points of groups; there is nothing like it for a whole tensor.
    return min_mse_range(observed, MinMSE(), grid)


RANGE_METHODS: tuple[tuple[type[Method], RangeFunction], ...] = (
    (MinMax, min_max_range),
    (Percentile, percentile_range),
    (Entropy, entropy_range),
    (MinMSE, min_mse_range),
    (HalfQuadratic, _range_of_whole_tensor),
    (NonOverflow, non_overflow_range),
    (LayerWisePercentile, layer_wise_percentile_range),
    (BestPercentile, best_percentile_range),
    (Distribution, distribution_range),
)
"""The type of the options, and the function that it selects."""


def find_range(observed: Observed, method: Method, grid: Grid) -> Range:
    """Return the range that a method selects for the values.

    Args:
        observed: The values.
        method: The method's options; their type selects the method.
        grid: The integers that the range will be mapped to.

    Raises:
        RecipeError: The method is not in `RANGE_METHODS`.
    """
    for options, function in RANGE_METHODS:
        if isinstance(method, options):
            return function(observed, method, grid)
    names = ", ".join(options.__name__ for options, _ in RANGE_METHODS)
    raise RecipeError(f"a calibration method must be one of {names}, got {method!r}; in the scale stage")


__all__ = ["RANGE_METHODS", "RangeFunction", "find_range"]
