"""Parameters of constants, computed from their exact values."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.errors import InternalError, RecipeError
from quantry.graph.weights import unshared
from quantry.numerics.affine import Affine, affine
from quantry.numerics.grid import Grid
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import HalfQuadratic, Method, MinMSE, PerGroup, TensorSpec
from quantry.scale.ranges import find_range
from quantry.scale.ranges.group_search import least_error_groups
from quantry.scale.ranges.half_quadratic import half_quadratic_groups
from quantry.scale.values import ExactValues

Values = npt.NDArray[np.float32]
Result = TypeVar("Result")

_NARROW_BITS = 4  # with more bits hardly anything is clipped, and the exhaustive search is worth its time


def constant_params(
    values: Values, spec: TensorSpec, axis: int | None, method: Method, *, reduced: bool = False
) -> TensorParams:
    """Return the parameters of one constant.

    A channel of zeros is exact at any scale. It gets the largest scale of its tensor, because its bias may be stored
    in multiples of it. A tensor of zeros, or without any value, gets scale 1.

    Args:
        values: Finite values.
        spec: Type, symmetry and kind of scale.
        axis: Channel axis, or the axis of the groups if the granularity is `PerGroup`; None for one scale.
        method: The calibration method.
        reduced: Use one bit less than the type has.

    Example:
        >>> from quantry.recipe import MinMax
        >>> weight = np.array([[1.27, -0.5], [0.0, 0.0]], np.float32)
        >>> constant_params(weight, TensorSpec(), 0, MinMax()).scale
        array([0.01, 0.01], dtype=float32)
    """
    grid = Grid.of(spec, reduced=reduced)
    if axis is not None and isinstance(spec.granularity, PerGroup):
        return _grouped_params(values, spec.granularity.size, axis, grid, method)
    groups = 1 if axis is None else values.shape[axis]
    if values.size == 0:
        scales = Affine(np.ones(groups, np.float32), np.full(groups, grid.centre if grid.symmetric else 0, np.int64))
    else:
        scales = _chosen(values, axis, grid, method)
        if grid.reduced and not grid.symmetric and not grid.power_of_two:
            scales = _with_both_ends(values, axis, grid, scales)
    if axis is None:
        return TensorParams(spec.dtype, scales.scale[0], scales.zero_point[0], limits=grid.limits)
    return TensorParams(spec.dtype, scales.scale, scales.zero_point, axis, grid.limits)


def _with_both_ends(values: Values, axis: int | None, grid: Grid, scales: Affine) -> Affine:
    """Return scales that keep both ends of each channel.

    A rounded zero point moves both ends by up to half a step, so one of them would be clipped. With one bit less that
    costs half a percent of the largest weight; a slightly larger scale keeps both.
    """
    reduced = None if axis is None else tuple(index for index in range(values.ndim) if index != axis)
    low = np.minimum(np.min(values, axis=reduced), 0.0).astype(np.float64).reshape(-1)
    high = np.maximum(np.max(values, axis=reduced), 0.0).astype(np.float64).reshape(-1)
    below, above = scales.zero_point - grid.lowest, grid.highest - scales.zero_point
    needed = np.maximum(-low / np.maximum(below, 1), high / np.maximum(above, 1))
    # A method that clips on purpose chose a much smaller scale: only the half step of rounding is made good.
    fits = needed <= scales.scale * (1 + 2 / grid.steps)
    return Affine(np.where(fits, np.maximum(scales.scale, needed), scales.scale).astype(np.float32), scales.zero_point)


def measure_constant(model: ir.Model, name: str, measure: Callable[[Values], Result]) -> Result:
    """Return a function of an initializer's values, and release the values.

    Large models keep their weights in files; releasing each one keeps only one in memory at a time. The function must
    not return the values or a view of them. Several threads may measure the same initializer.

    Args:
        model: The float model.
        name: Name of the initializer.
        measure: A function of the values as float32.

    Raises:
        InternalError: The plan names an initializer that the model does not have.
    """
    value = model.graph.initializers.get(name)
    tensor = None if value is None else value.const_value
    if tensor is None:
        raise InternalError(f"the plan must name initializers of the model, got {name!r}; in the scale stage")
    return measure(np.asarray(unshared(tensor).numpy(), dtype=np.float32))


def _chosen(values: Values, axis: int | None, grid: Grid, method: Method) -> Affine:
    observed = ExactValues(np.asarray(values, np.float32), axis)
    scales = affine(find_range(observed, method, grid), grid)
    return _with_scale_for_empty_channels(scales, observed.extrema().magnitude == 0)


def _grouped_params(values: Values, size: int, axis: int, grid: Grid, method: Method) -> TensorParams:
    """Return one scale for each group of values along an axis; the last group is padded with zeros, which are exact."""
    rows = np.moveaxis(values, axis, -1)
    if rows.size and isinstance(method, MinMSE) and not grid.power_of_two and grid.dtype.bits <= _NARROW_BITS:
        searched, empty = least_error_groups(
            rows.reshape(-1, rows.shape[-1]), size, grid, either_sign=method.either_sign and grid.symmetric
        )
        scales = _with_scale_for_empty_channels(searched, empty)
        return _params_of_groups(scales, rows.shape[:-1], axis, grid, size)
    lacking = -rows.shape[-1] % size
    rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, lacking)])
    shape = (*rows.shape[:-1], rows.shape[-1] // size)
    if rows.size and isinstance(method, HalfQuadratic):
        if grid.symmetric or grid.power_of_two:
            raise RecipeError(
                "HalfQuadratic() needs asymmetric weights with float scales, because it moves zero points, got "
                f"{'symmetric' if grid.symmetric else 'power-of-two'} {grid.dtype.value}; in the scale stage"
            )
        groups = rows.reshape(-1, size)
        searched = half_quadratic_groups(groups, grid, method)
        scales = _with_scale_for_empty_channels(searched, np.asarray(np.all(groups == 0, axis=1)))
    elif rows.size == 0:
        scales = Affine(np.ones(shape, np.float32), np.full(shape, grid.centre if grid.symmetric else 0, np.int64))
    else:
        scales = _chosen(rows.reshape(-1, size), 0, grid, method)
    return _params_of_groups(scales, shape[:-1], axis, grid, size)


def _params_of_groups(scales: Affine, outer: tuple[int, ...], axis: int, grid: Grid, size: int) -> TensorParams:
    """Return the parameters of groups that lie along the last axis, after ``outer`` axes, moved to their own axis."""
    shape = (*outer, -1)
    scale = np.moveaxis(scales.scale.reshape(shape), -1, axis)
    zero_point = np.moveaxis(scales.zero_point.reshape(shape), -1, axis)
    return TensorParams(grid.dtype, scale, zero_point, axis, grid.limits, size)


def _with_scale_for_empty_channels(scales: Affine, empty: npt.NDArray[np.bool_]) -> Affine:
    if empty.all() or not empty.any():
        return scales
    return Affine(np.where(empty, scales.scale[~empty].max(), scales.scale), scales.zero_point)
