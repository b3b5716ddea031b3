"""Scale and zero point of ranges, against onnxruntime's and against their promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.quant_utils import compute_scale_zp

from quantry.errors import RecipeError
from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid, Range
from quantry.numerics.power_of_two import representable_range
from quantry.numerics.rounding import fake_quantize
from quantry.recipe import DataType, PowerOfTwoScale, TensorSpec
from quantry.testing.range_suite import params_of

TYPES = [DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16]
ENDS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TINY = float(np.finfo(np.float32).tiny)

grids = st.builds(
    Grid, dtype=st.sampled_from(TYPES), symmetric=st.booleans(), power_of_two=st.booleans(), reduced=st.booleans()
)


def one(low: float, high: float) -> Range:
    return Range(np.array([low]), np.array([high]))


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", TYPES[2:], ids=lambda dtype: dtype.value)
@settings(max_examples=30, deadline=None)
@given(low=st.floats(-(2.0**100), 2.0**100, width=32), high=st.floats(-(2.0**100), 2.0**100, width=32))
def test_float_scale_equals_onnxruntime(dtype, symmetric, reduced, low, high):
    low, high = min(low, high), max(low, high)
    grid = Grid(dtype, symmetric, reduced=reduced)
    ends = (-grid.steps, grid.steps) if symmetric else (grid.lowest, grid.highest)
    theirs_zero, theirs_scale = compute_scale_zp(
        np.array(low, np.float32), np.array(high, np.float32), np.array(ends[0]), np.array(ends[1]), symmetric
    )
    ours = affine(one(low, high), grid)
    assert ours.scale[0] == np.float32(theirs_scale)
    if ours.scale[0] != 1:
        assert ours.zero_point[0] == theirs_zero + (grid.centre if symmetric else 0)


@settings(max_examples=250, deadline=None)
@given(grid=grids, low=ENDS, high=ENDS)
def test_every_range_has_a_normal_scale_and_an_exact_zero(grid, low, high):
    params = params_of(one(min(low, high), max(low, high)), grid)
    assert TINY <= params.scale < np.inf
    assert grid.lowest <= params.zero_point <= grid.highest
    assert fake_quantize(np.float32(0), params) == 0
    if grid.power_of_two:
        assert np.frexp(params.scale)[0] == 0.5


@settings(max_examples=200, deadline=None)
@given(
    grid=grids.filter(lambda grid: not grid.power_of_two),
    low=st.floats(-1e6, 0, width=32),
    high=st.floats(0, 1e6, width=32),
    place=st.floats(0, 1),
)
def test_values_inside_the_range_are_within_half_a_step(grid, low, high, place):
    params = params_of(one(low, high), grid)
    value = np.float32(low + (high - low) * place)
    # The zero point is rounded, so an end may lie up to one half of a step outside and be off by as much again.
    slack = (0.5 if grid.symmetric else 1.0) * params.scale * (1 + 1e-3)
    assert abs(fake_quantize(value, params) - value) <= slack + 1e-6 * abs(value)


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point"),
    [
        (DataType.INT8, 1 / 127, 0),
        (DataType.UINT8, 1 / 127, 128),
        (DataType.INT4, 1 / 7, 0),
        (DataType.UINT4, 1 / 7, 8),
    ],
)
def test_symmetric_range_represents_both_ends(dtype, scale, zero_point):
    params = params_of(one(-1, 0.5), Grid(dtype, symmetric=True))
    assert (params.scale, params.zero_point) == (np.float32(scale), zero_point)
    np.testing.assert_allclose(fake_quantize([-1.0, 1.0], params), [-1, 1], rtol=1e-6)


def test_nearest_power_of_two_may_clip():
    assert affine(one(-1.4, 1.4), Grid(DataType.INT8, symmetric=True, power_of_two=True)).scale[0] == 2.0**-7


@pytest.mark.parametrize("symmetric", [True, False])
def test_empty_range_has_scale_one(symmetric):
    for dtype in TYPES:
        chosen = affine(one(0, 0), Grid(dtype, symmetric))
        assert chosen.scale[0] == 1
        assert chosen.zero_point[0] == (Grid(dtype, symmetric).centre if symmetric else 0)


@settings(max_examples=200, deadline=None)
@given(
    grid=grids.filter(lambda grid: grid.power_of_two),
    exponent=st.integers(-126, 111),
    place=st.floats(0, 1),
)
def test_range_made_from_a_power_of_two_comes_back_as_it(grid, exponent, place):
    zero = grid.centre if grid.symmetric else round(grid.lowest + (grid.highest - grid.lowest) * place)
    chosen = affine(representable_range(np.array([float(exponent)]), np.array([float(zero)]), grid), grid)
    assert chosen.scale[0] == 2.0**exponent
    assert chosen.zero_point[0] == zero


def test_grid_of_a_float_type_raises():
    with pytest.raises(RecipeError, match="need an integer type or an 8-bit float, got bfloat16; in the scale stage"):
        Grid.of(TensorSpec(DataType.BFLOAT16))


def test_grid_of_a_specification():
    grid = Grid.of(TensorSpec(DataType.UINT8, scale=PowerOfTwoScale()), reduced=True)
    assert (grid.lowest, grid.highest, grid.centre, grid.limits) == (0, 127, 64, (0, 127))
    assert grid.power_of_two
