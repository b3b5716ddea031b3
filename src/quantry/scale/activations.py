r"""Parameters of activations, computed from their statistics.

MinMSE can measure the error of a tensor after the elementwise functions that read it (`responses`):

::

    Conv -> x ----> Sigmoid -> s ---> Mul -> y -> Conv        x is read only through y = x * sigmoid(x)
             \_______________________/

An error of x matters only as far as it changes y: far below zero it changes nothing, however large it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from quantry.errors import DataError
from quantry.graph.elementwise import functions_of
from quantry.graph.quant_plan import ActivationPlan, FixedRange, OwnRange, QuantPlan, SharedRange
from quantry.notes import Note
from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid
from quantry.numerics.histogram import TensorStats, variance
from quantry.numerics.scalar_function import MAX_OPERATORS, ScalarFunction
from quantry.numerics.tensor_params import TensorParams
from quantry.observe import Statistics
from quantry.recipe import FixedScale, Method, MinMax, NonOverflow, TensorSpec
from quantry.scale.parameter_cache import cached_params
from quantry.scale.ranges import find_range
from quantry.scale.values import BinnedValues, ExactValues, Observed, ResponseValues

Functions = Mapping[str, tuple[ScalarFunction, ...]]


def activation_params(
    plans: Mapping[str, ActivationPlan], statistics: Statistics, method: Method, functions: Functions | None = None
) -> dict[str, TensorParams]:
    """Return the parameters of every planned activation whose type has a scale, in the order of the plan.

    Args:
        plans: The plan of each activation.
        statistics: The statistics of each activation.
        method: The calibration method.
        functions: By tensor name, the functions after which its errors are measured; errors of other tensors are those
            of their own values.

    Raises:
        DataError: A tensor has no statistics or no finite value.
    """
    own_ranges = {
        name: _own_params(name, plan, statistics, method, (functions or {}).get(name, ()))
        for name, plan in plans.items()
        if not isinstance(plan, SharedRange) and plan.spec.dtype.has_scale
    }
    roots = {name: plan.source if isinstance(plan, SharedRange) else name for name, plan in plans.items()}
    return {name: own_ranges[root] for name, root in roots.items() if root in own_ranges}


def conversion_params(plan: QuantPlan, statistics: Statistics, method: Method) -> dict[str, TensorParams]:
    """Return the parameters of every conversion to a type with a scale, by the conversion's name.

    Args:
        plan: Its conversions, and the plans of the tensors before them.
        statistics: The statistics of these tensors.
        method: The calibration method.
    """
    params = {}
    for name, conversion in plan.conversions.items():
        if conversion.spec.dtype.has_scale:
            root = plan.root(conversion.tensor)
            source = plan.activations[root]
            assert not isinstance(source, SharedRange)
            params[name] = _own_params(root, replace(source, spec=conversion.spec), statistics, method)
    return params


def fixed_params(graph: ir.Graph, plan: QuantPlan, fixed: Iterable[FixedScale]) -> dict[str, TensorParams]:
    """Return the parameters of activations whose scale the target fixes, and of those that share it.

    Args:
        graph: The float graph.
        plan: The plan of each activation.
        fixed: The scales by operator and type.
    """
    scales = {(entry.operator, entry.dtype): entry for entry in fixed}
    if not scales:
        return {}
    written_by = {value.name: node.op_type for node in graph for value in node.outputs}
    params = {}
    for name in plan.activations:
        root = plan.root(name)
        source = plan.activations[root]
        assert not isinstance(source, SharedRange)
        entry = scales.get((written_by.get(root, ""), source.spec.dtype))
        if entry is not None:
            params[name] = TensorParams(entry.dtype, np.array(entry.scale, np.float32), np.array(entry.zero_point))
    return params


def unusual_values(plans: Mapping[str, ActivationPlan], statistics: Statistics) -> tuple[Note, ...]:
    """Return a note for every planned activation in which NaN or infinities occurred.

    Args:
        plans: The plan of each activation.
        statistics: The statistics of each activation.
    """
    observed = [(name, statistics.tensors[name]) for name in plans if name in statistics.tensors]
    message = (
        "activation {name!r}: {nan_count} NaN and {inf_count} infinite of {count} values are not included in its range"
    )
    return tuple(
        Note.of(message, name=name, nan_count=stats.nan_count, inf_count=stats.inf_count, count=stats.count)
        for name, stats in observed
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
        return _fixed_params(name, plan, statistics, method)
    stats = _stats(name, statistics)
    if not stats.count:
        # A tensor without elements has no range; any scale is right.
        return _params(ExactValues(np.zeros(1, np.float32)), MinMax(), plan.spec)

    def find() -> TensorParams:
        return _params(ResponseValues(stats, functions) if functions else BinnedValues(stats), method, plan.spec)

    return cached_params(stats, (method, plan.spec, functions), find)


_COARSE = 100.0
_GAIN = 2.0
"""A known range is replaced if the variance is less than `_COARSE` times its error, and the observed range has
an error that is at least `_GAIN` times smaller."""


def _fixed_params(name: str, plan: FixedRange, statistics: Statistics, method: Method) -> TensorParams:
    """Return parameters for a known range, or for what was observed if that uses too little of the known range.

    A Softmax over a thousand similar classes never exceeds 0.002: with a step of 1/256 all its values would be zero.
    """
    ends = ExactValues(np.array([plan.low, plan.high], np.float32))
    # A known range needs no statistics. It is used as a whole, without overflow if that was requested. So is the
    # observed one: the largest probability decides, so it must not be clipped.
    method = method if isinstance(method, NonOverflow) else MinMax()
    fixed = _params(ends, method, plan.spec)
    stats = statistics.tensors.get(name)
    if stats is None or not stats.count or not np.isfinite([stats.minimum, stats.maximum]).all():
        return fixed

    def find() -> TensorParams:
        values, grid = BinnedValues(stats), Grid.of(plan.spec)
        params = _params(values, method, plan.spec)
        scales, zero_points = (
            np.array([[float(entry) for entry in pair]])
            for pair in ((fixed.scale, params.scale), (fixed.zero_point, params.zero_point))
        )
        of_known, of_own = values.error(scales, zero_points, grid, 2)[0]
        is_coarse = of_known * _COARSE > variance(stats)
        return params if is_coarse and of_own * _GAIN < of_known else fixed

    return cached_params(stats, (method, plan), find)


def _params(observed: Observed, method: Method, spec: TensorSpec) -> TensorParams:
    grid = Grid.of(spec)
    scales = affine(find_range(observed, method, grid), grid)
    return TensorParams(spec.dtype, scales.scale[0], scales.zero_point[0])


def _stats(name: str, statistics: Statistics) -> TensorStats:
    stats = statistics.tensors.get(name)
    if stats is None:
        raise DataError(
            f"every quantized activation needs statistics, got none for {name!r} among {len(statistics.tensors)} "
            "observed tensors; in the scale stage"
        )
    if stats.count and not (np.isfinite(stats.minimum) and np.isfinite(stats.maximum)):
        raise DataError(
            f"every quantized activation needs finite values, got {stats.nan_count} NaN and {stats.inf_count} infinite "
            f"of {stats.count} values for {name!r}; in the scale stage"
        )
    return stats


def responses(graph: ir.Graph, names: Iterable[str]) -> dict[str, tuple[ScalarFunction, ...]]:
    """Return the functions through which each tensor is read, for tensors that are read only through such functions.

    Args:
        graph: The sorted graph.
        names: Tensors of it.

    Returns:
        Functions by name. A tensor is absent if it is an output, or if a node reads it that is not such a function.
    """
    values = {value.name: value for node in graph for value in node.outputs}
    responses_of = {}
    for name in names:
        if name in values and (functions := _functions(values[name])):
            responses_of[name] = functions
    return responses_of


def _functions(start: ir.Value) -> tuple[ScalarFunction, ...]:
    functions = functions_of(start, MAX_OPERATORS)
    ends = [value for value in functions if value.is_graph_output() or _read_outside(value, functions)]
    return () if start in ends else tuple(functions[value] for value in ends)


def _read_outside(value: ir.Value, functions: Mapping[ir.Value, ScalarFunction]) -> bool:
    return any(not use.node.outputs or use.node.outputs[0] not in functions for use in value.uses())
