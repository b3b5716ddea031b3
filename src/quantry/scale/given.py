"""Parameters that the user gives, and rules that change found ones, instead of what calibration finds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.errors import SelectionError, nearest_spelling
from quantry.graph.quant_plan import OwnBiasPlan, QuantPlan, SharedRange
from quantry.numerics.affine import scale_and_zero_point
from quantry.numerics.grid import Grid
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType, GivenRange, ScaleOptions, TensorSpec

Ends = NDArray[np.float64]
Extremes = Callable[[str], tuple[Any, Any]]


def with_given(
    tensors: Mapping[str, TensorParams], plan: QuantPlan, ranges: Iterable[GivenRange], names: Iterable[str]
) -> dict[str, TensorParams]:
    """Return the parameters with those that the user gives.

    Args:
        tensors: What calibration found.
        plan: For the types.
        ranges: What the user gives.
        names: The tensors of this call: activations or weights.

    Raises:
        SelectionError: A tensor is not quantized.
    """
    params = dict(tensors)
    present = set(names)
    for entry in ranges:
        planned = (*plan.activations, *plan.conversions, *plan.weights, *plan.biases)
        if entry.tensor not in planned and not entry.optional:
            raise SelectionError(
                f"ScaleOptions.given must name quantized tensors, got {entry.tensor!r}, which stays float or is not "
                f"present in the model{nearest_spelling(entry.tensor, planned)}"
            )
        if entry.tensor in present and entry.tensor in params:
            params[entry.tensor] = _params(params[entry.tensor], spec_of(plan, entry.tensor), entry)
    return params


def spec_of(plan: QuantPlan, name: str) -> TensorSpec:
    """Return the type of a quantized tensor."""
    bias = plan.biases.get(name)
    if bias is not None:
        return bias.spec if isinstance(bias, OwnBiasPlan) else TensorSpec(DataType.INT32)
    if name in plan.weights:
        return plan.weights[name].spec
    if name in plan.conversions:
        return plan.conversions[name].spec
    owner = plan.activations[plan.root(name)]
    assert not isinstance(owner, SharedRange)
    return owner.spec


def represented_range(params: TensorParams, spec: TensorSpec) -> tuple[Ends, Ends]:
    """Return the ranges from which scales and zero points were computed, up to rounding.

    A symmetric int8 tensor represents -128 steps too, but its scale is computed from 127 on either side.
    """
    scale = params.scale.astype(np.float64)
    if spec.symmetric:
        end = Grid.of(spec, reduced=params.limits is not None).steps * scale
        return -end, end
    return (params.lowest - params.zero_point) * scale, (params.highest - params.zero_point) * scale


def _params(params: TensorParams, spec: TensorSpec, entry: GivenRange) -> TensorParams:
    count = max(map(len, (entry.lowest, entry.highest, entry.scale, entry.zero_point)))
    if count > 1 and params.axis is None:
        # One number for each element of a bias, which had one scale until now.
        spread = np.broadcast_to(params.scale, (count,)), np.broadcast_to(params.zero_point, (count,))
        params = replace(params, scale=spread[0], zero_point=spread[1], axis=0)
    if entry.scale or entry.zero_point:
        scale = _numbers(entry.scale, params.scale, np.float32)
        return replace(params, scale=scale, zero_point=_numbers(entry.zero_point, params.zero_point, np.int64))
    if not entry.lowest and not entry.highest and not entry.reduced:
        return params
    low, high = represented_range(params, spec)
    grid = Grid.of(spec, reduced=entry.reduced or params.limits is not None)
    return _of_range(params, grid, _numbers(entry.lowest, low, np.float64), _numbers(entry.highest, high, np.float64))


def _of_range(params: TensorParams, grid: Grid, low: Ends, high: Ends) -> TensorParams:
    scale, zero_point = scale_and_zero_point(low, high, grid)
    limits = (grid.lowest, grid.highest) if grid.reduced else None
    return replace(params, scale=scale, zero_point=zero_point, limits=limits)


def with_rules(
    tensors: Mapping[str, TensorParams], plan: QuantPlan, extremes: Extremes, options: ScaleOptions
) -> dict[str, TensorParams]:
    """Return the parameters after the rules of the options: a smallest range, zero points at an end.

    Args:
        tensors: Activations or weights.
        plan: For the types.
        extremes: Returns the smallest and the largest values of a tensor, of the shape of its scales.
        options: The rules.
    """
    result = dict(tensors)
    for name, params in tensors.items():
        spec = spec_of(plan, name)
        grid = Grid.of(spec, reduced=params.limits is not None)
        if options.smallest_range and params.group is None:
            low, high = (np.asarray(end, np.float64).reshape(params.scale.shape) for end in extremes(name))
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
            narrow = high - low < options.smallest_range
            wide = _of_range(params, grid, low, np.maximum(high, low + options.smallest_range))
            scale = np.where(narrow, wide.scale, params.scale)
            result[name] = replace(params, scale=scale, zero_point=np.where(narrow, wide.zero_point, params.zero_point))
        if options.zero_point_at_an_end and name in plan.activations:
            result[name] = _at_an_end(result[name], float(np.min(extremes(name)[0])), symmetric=spec.symmetric)
    return result


def _at_an_end(params: TensorParams, lowest: float, *, symmetric: bool) -> TensorParams:
    if lowest >= 0.0:
        largest = (params.highest - params.zero_point) * params.scale.astype(np.float64)
        scale = (largest / (params.highest - params.lowest)).astype(np.float32)
        return replace(params, scale=scale, zero_point=np.full_like(params.zero_point, params.lowest))
    if symmetric or params.dtype.is_signed:
        return params
    old = params.scale.astype(np.float64)
    largest = np.maximum((params.zero_point - params.lowest) * old, (params.highest - params.zero_point) * old)
    middle = np.full_like(params.zero_point, (params.lowest + params.highest + 1) // 2)
    scale = (2 * largest / (params.highest - params.lowest)).astype(np.float32)
    return replace(params, scale=scale, zero_point=middle)


def _numbers(numbers: tuple[float, ...], computed: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return given numbers in the shape of found ones; NaN stands for a channel that is not given."""
    if not numbers:
        return computed.astype(dtype)
    array = np.broadcast_to(np.array(numbers, np.float64).reshape(-1 if computed.ndim else ()), computed.shape)
    return np.where(np.isnan(array), computed, array).astype(dtype)
