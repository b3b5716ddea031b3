"""Parameters of activations, from their statistics."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from quantry.errors import DataError
from quantry.observe import Statistics, TensorStats
from quantry.observe.scalar_function import ScalarFunction
from quantry.plan import ActivationPlan, FixedRange, OwnRange, QuantPlan, SharedRange
from quantry.recipe import Method, MinMax, NonOverflow, TensorSpec
from quantry.scale.affine import affine
from quantry.scale.behind_values import BehindValues
from quantry.scale.binned_values import BinnedValues
from quantry.scale.exact_values import ExactValues
from quantry.scale.grid import Grid
from quantry.scale.observed import Observed
from quantry.scale.parameter_memory import remembered
from quantry.scale.ranges import find_range
from quantry.scale.tensor_params import TensorParams

Functions = Mapping[str, tuple[ScalarFunction, ...]]


def activation_params(
    plans: Mapping[str, ActivationPlan], statistics: Statistics, method: Method, functions: Functions | None = None
) -> dict[str, TensorParams]:
    """Return the parameters of every planned activation of an integer type, in the order of the plan.

    Args:
        plans: What each activation becomes.
        statistics: What was observed of each.
        method: The calibration method.
        functions: By name of the tensor, the functions behind which its errors are judged; of others, the errors of
            their own values.

    Raises:
        DataError: A tensor has no statistics or not one finite value.
    """
    own = {
        name: _own_params(name, plan, statistics, method, (functions or {}).get(name, ()))
        for name, plan in plans.items()
        if not isinstance(plan, SharedRange) and plan.spec.dtype.is_integer
    }
    roots = {name: plan.source if isinstance(plan, SharedRange) else name for name, plan in plans.items()}
    return {name: own[root] for name, root in roots.items() if root in own}


def conversion_params(plan: QuantPlan, statistics: Statistics, method: Method) -> dict[str, TensorParams]:
    """Return the parameters of every conversion to an integer type, by the conversion's name.

    Args:
        plan: Its conversions, and what the tensors before them become.
        statistics: What was observed of these.
        method: The calibration method.
    """
    found = {}
    for name, conversion in plan.conversions.items():
        if conversion.spec.dtype.is_integer:
            root = plan.root(conversion.tensor)
            source = plan.activations[root]
            assert not isinstance(source, SharedRange)
            found[name] = _own_params(root, replace(source, spec=conversion.spec), statistics, method)
    return found


def unusual_values(plans: Mapping[str, ActivationPlan], statistics: Statistics) -> tuple[str, ...]:
    """Return a note for every planned activation in which NaN or infinities were seen.

    Args:
        plans: What each activation becomes.
        statistics: What was observed of each.
    """
    seen = [(name, statistics.tensors[name]) for name in plans if name in statistics.tensors]
    return tuple(
        f"activation {name!r}: {stats.nan_count} NaN and {stats.inf_count} infinite of {stats.count} values were left "
        "out of its range"
        for name, stats in seen
        if stats.nan_count or stats.inf_count
    )


def _own_params(
    name: str,
    plan: OwnRange | FixedRange,
    statistics: Statistics,
    method: Method,
    functions: tuple[ScalarFunction, ...] = (),
) -> TensorParams:
    if isinstance(plan, FixedRange):
        ends = ExactValues(np.array([plan.low, plan.high], np.float32))
        # A known range needs no statistics: it is taken whole, and kept from overflowing where that was asked for.
        return _params(ends, method if isinstance(method, NonOverflow) else MinMax(), plan.spec)
    stats = _stats(name, statistics)
    if not stats.count:
        # A tensor without elements needs no range; any scale will do.
        return _params(ExactValues(np.zeros(1, np.float32)), MinMax(), plan.spec)

    def find() -> TensorParams:
        return _params(BehindValues(stats, functions) if functions else BinnedValues(stats), method, plan.spec)

    return remembered(stats, (method, plan.spec, functions), find)


def _params(observed: Observed, method: Method, spec: TensorSpec) -> TensorParams:
    grid = Grid.of(spec)
    chosen = affine(find_range(observed, method, grid), grid)
    return TensorParams(spec.dtype, chosen.scale[0], chosen.zero_point[0])


def _stats(name: str, statistics: Statistics) -> TensorStats:
    stats = statistics.tensors.get(name)
    if stats is None:
        raise DataError(
            f"every quantized activation needs statistics, got none for {name!r} among {len(statistics.tensors)} "
            "observed tensors, in the scale stage"
        )
    if stats.count and not (np.isfinite(stats.minimum) and np.isfinite(stats.maximum)):
        raise DataError(
            f"every quantized activation needs finite values, got {stats.nan_count} NaN and {stats.inf_count} infinite "
            f"of {stats.count} values for {name!r}, in the scale stage"
        )
    return stats
