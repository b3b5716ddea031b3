"""NonOverflow never overflows, and MinMSE finds the best power of two there is."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantry.numerics.grid import Grid
from quantry.numerics.rounding import fake_quantize
from quantry.recipe import DataType, MinMax, MinMSE, NonOverflow
from quantry.scale import BinnedValues, ExactValues, find_range
from quantry.testing.range_suite import SAMPLES, params_of, stats_of

TYPES = [DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16]
# An eighth of float32's largest value, where power-of-two scales end.
LARGEST = float(2.0**125)

grids = st.builds(
    functools.partial(Grid, power_of_two=True),
    dtype=st.sampled_from(TYPES),
    symmetric=st.booleans(),
    reduced=st.booleans(),
)
arrays = hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(-LARGEST, LARGEST, width=32))


def mean_square(values: np.ndarray, scale: float, zero_point: int, grid: Grid) -> float:
    levels = np.clip(np.rint(values.astype(np.float64) / scale) + zero_point, grid.lowest, grid.highest)
    return float(((values - (levels - zero_point) * scale) ** 2).mean())


def overflows(values: np.ndarray, scale: float, zero_points: np.ndarray, grid: Grid) -> np.ndarray:
    levels = np.rint(values.astype(np.float64) / scale)
    return (levels.min() + zero_points < grid.lowest) | (levels.max() + zero_points > grid.highest)


@settings(max_examples=200, deadline=None)
@given(values=arrays, grid=grids)
def test_non_overflow_never_overflows_and_no_finer_scale_fits(values, grid):
    params = params_of(find_range(ExactValues(values), NonOverflow(), grid), grid)
    scale = float(params.scale)
    assert not overflows(values, scale, params.zero_point, grid)
    assert np.frexp(scale)[0] == 0.5
    finer = scale / 2
    if np.abs(values).max() > 0 and finer >= np.finfo(np.float32).tiny:
        zero_points = np.arange(grid.lowest, grid.highest + 1) if not grid.symmetric else np.array([grid.centre])
        assert overflows(values, finer, zero_points, grid).all()


@settings(max_examples=150, deadline=None)
@given(values=hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(-1000, 1000, width=32)), grid=grids)
def test_non_overflow_keeps_every_value_within_half_a_step(values, grid):
    params = params_of(find_range(BinnedValues(stats_of([values])), NonOverflow(), grid), grid)
    assert np.abs(fake_quantize(values, params) - values).max() <= params.scale / 2


def test_non_overflow_differs_from_the_nearest_power_of_min_max():
    values = ExactValues(np.array([1.4, -0.2], np.float32))
    grid = Grid(DataType.INT8, symmetric=True, power_of_two=True)
    nearest, fitting = (params_of(find_range(values, m, grid), grid).scale for m in (MinMax(), NonOverflow()))
    assert (nearest, fitting) == (2.0**-7, 2.0**-6)


def test_value_that_rounds_to_the_last_level_does_not_overflow():
    grid = Grid(DataType.INT8, symmetric=True, power_of_two=True)
    scales = [
        params_of(find_range(ExactValues(np.array([x], np.float32)), NonOverflow(), grid), grid).scale
        for x in (127.25, 127.5, -128.5, -128.75)
    ]
    assert scales == [1, 2, 1, 2]


def test_asymmetric_non_overflow_of_rectified_values_has_the_lowest_zero_point():
    grid = Grid(DataType.UINT8, symmetric=False, power_of_two=True)
    params = params_of(find_range(ExactValues(np.array([0, 3.9], np.float32)), NonOverflow(), grid), grid)
    assert (params.scale, params.zero_point) == (2.0**-6, 0)


@settings(max_examples=150, deadline=None)
@given(
    values=hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-1000, 1000, width=32)),
    grid=grids.filter(lambda grid: grid.symmetric),
    squeeze=st.sampled_from([1, 3]),
)
def test_symmetric_min_mse_equals_brute_force_over_all_positions(values, grid, squeeze):
    # Cubing gives outliers, for which finer scales with clipping pay.
    values = (values**squeeze).astype(np.float32)
    scale = float(params_of(find_range(ExactValues(values), MinMSE(), grid), grid).scale)
    best = min(mean_square(values, 2.0**exponent, grid.centre, grid) for exponent in range(-60, 40))
    slack = 1e-12 * float((values.astype(np.float64) ** 2).mean())
    assert mean_square(values, scale, grid.centre, grid) <= best * (1 + 1e-5) + slack + 1e-30


@pytest.mark.parametrize("dtype", [DataType.UINT4, DataType.INT8], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("sample", SAMPLES)
def test_asymmetric_min_mse_is_near_brute_force_over_positions_and_zero_points(sample, dtype):
    values, grid = SAMPLES[sample][:500], Grid(dtype, symmetric=False, power_of_two=True)
    zero_points = range(grid.lowest, grid.highest + 1)
    best = min(mean_square(values, 2.0**exponent, zero, grid) for exponent in range(-9, 3) for zero in zero_points)
    for observed in (ExactValues(values), ExactValues(values[None], axis=0)):
        params = params_of(find_range(observed, MinMSE(), grid), grid)
        assert mean_square(values, float(params.scale), int(params.zero_point), grid) <= best * 1.01


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("sample", SAMPLES)
def test_counted_values_lead_to_the_same_position(sample, symmetric):
    for dtype in TYPES:
        grid = Grid(dtype, symmetric, power_of_two=True)
        values = SAMPLES[sample]
        counted, exact = (
            params_of(find_range(observed, MinMSE(), grid), grid)
            for observed in (BinnedValues(stats_of([values])), ExactValues(values))
        )
        errors = [mean_square(values, float(p.scale), int(p.zero_point), grid) for p in (counted, exact)]
        assert errors[0] <= errors[1] * 1.02
