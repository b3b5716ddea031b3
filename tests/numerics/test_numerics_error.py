"""The closed-form error against quantizing the raw values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantry.numerics.error import Moments, _error_by_bins, _error_by_levels
from quantry.numerics.grid import Grid
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType
from quantry.scale import BinnedValues, ExactValues
from quantry.testing.range_suite import SAMPLES, stats_of

GRIDS = [
    Grid(DataType.INT8, symmetric=True),
    Grid(DataType.UINT4, symmetric=False),
    Grid(DataType.INT16, symmetric=True),
]


def direct(values: np.ndarray, scale: float, zero_point: int, grid: Grid, power: int) -> float:
    params = TensorParams(grid.dtype, np.float32(scale), np.int64(zero_point))
    return float((np.abs(values.astype(np.float64) - fake_quantize(values, params)) ** power).mean())


def moments_of(lower, upper, counts) -> Moments:
    return Moments(*(np.array(part, np.float64) for part in (lower, upper, counts)))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("sample", SAMPLES)
def test_error_of_exact_values_equals_quantizing_them(sample, grid, power):
    values = SAMPLES[sample]
    scales = np.abs(values).max() / grid.highest * np.array([1.0, 0.7, 0.3, 0.1])
    zeros = np.array([grid.centre, grid.lowest, grid.centre + 1, grid.highest], np.float64)
    expected = [direct(values, s, int(z), grid, power) for s, z in zip(scales, zeros, strict=True)]
    scales = scales.astype(np.float32).astype(np.float64)
    per_tensor = ExactValues(values).error(scales[None], zeros[None], grid, power)
    per_channel = ExactValues(values[None], axis=0).error(scales[None], zeros[None], grid, power)
    # The products of float32 cost the oracle digits at 16 bits.
    np.testing.assert_allclose(per_tensor[0], expected, rtol=2e-3 if grid.dtype.bits > 8 else 1e-4)
    np.testing.assert_allclose(per_channel[0], expected, rtol=2e-3 if grid.dtype.bits > 8 else 1e-4)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("grid", GRIDS[:2], ids=str)
@pytest.mark.parametrize("sample", SAMPLES)
def test_error_of_counted_values_is_near_that_of_the_raw_ones(sample, grid, power):
    values = SAMPLES[sample]
    scales = np.abs(values).max() / grid.highest * np.array([1.0, 0.7, 0.3])
    zeros = np.full(3, float(grid.centre))
    expected = [direct(values, s, grid.centre, grid, power) for s in scales]
    got = BinnedValues(stats_of([values])).error(scales[None], zeros[None], grid, power)
    np.testing.assert_allclose(got[0], expected, rtol=0.03)


@settings(max_examples=150, deadline=None)
@given(
    edges=hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(-20, 20, width=32), unique=True),
    scale=st.floats(0.3, 5),
    zero=st.integers(0, 15),
    power=st.sampled_from([1, 2]),
)
def test_both_ways_agree_with_numerical_integration(edges, scale, zero, power):
    edges = np.sort(edges)
    counts = np.arange(1.0, len(edges))
    moments = Moments(edges[:-1], edges[1:], counts)
    grid = Grid(DataType.UINT4, symmetric=False)
    arguments = (np.array([scale]), np.array([float(zero)]), grid, power)
    parts = (np.arange(4000) + 0.5) / 4000
    expected = 0.0
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        x = low + (high - low) * parts
        nearest = np.clip(np.rint(x / scale), -zero, 15 - zero) * scale
        expected += count * (np.abs(x - nearest) ** power).mean()
    np.testing.assert_allclose(_error_by_bins(moments, *arguments), expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(_error_by_levels(moments, *arguments), expected, rtol=1e-3, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    points=hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6)),
    scale=st.floats(1e-3, 1e4),
    power=st.sampled_from([1, 2]),
)
def test_point_masses_are_not_smeared(points, scale, power):
    points = np.unique(points)
    moments = Moments(points, points, np.ones(len(points)))
    grid = Grid(DataType.INT8, symmetric=True)
    nearest = np.clip(np.rint(points / scale), -128, 127) * scale
    expected = (np.abs(points - nearest) ** power).sum()
    for way in (_error_by_bins, _error_by_levels):
        got = way(moments, np.array([scale]), np.zeros(1), grid, power)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12 * (points**2).sum() + 1e-9)


def test_one_outlier_leaves_the_digits_of_the_rest():
    values = np.concatenate([np.random.default_rng(0).normal(size=5000), [1e9]]).astype(np.float32)
    grid = Grid(DataType.INT8, symmetric=True)
    scale = np.array([[2.0**23]])
    expected = direct(values, scale[0, 0], 0, grid, 2)
    assert ExactValues(values).error(scale, np.zeros((1, 1)), grid, 2)[0, 0] == pytest.approx(expected, rel=1e-6)


def test_candidate_too_fine_for_float32_is_infinitely_bad():
    values = np.array([1e30, -1e30], np.float32)
    errors = ExactValues(values).error(np.array([[1e28, 1e-30]]), np.zeros((1, 2)), GRIDS[0], 2)
    assert errors[0, 0] < 1e56 < errors[0, 1]


def test_moments_between_points_count_a_bin_across_zero_once():
    moments = moments_of([-1.0], [3.0], [4.0])
    sums = moments.between(np.array([-np.inf, -0.5, 0.0, 2.0, np.inf]))
    np.testing.assert_allclose(sums.mass, [0.5, 0.5, 2, 1])
    np.testing.assert_allclose(sums.first, [-0.375, -0.125, 2, 2.5])


@pytest.mark.parametrize("sample", SAMPLES)
def test_clipping_is_what_lies_outside(sample):
    values = SAMPLES[sample]
    low, high = np.array([[-1.0, -0.3, -9.0]]), np.array([[1.0, 0.1, 2.0]])
    outside = values[:, None].astype(np.float64) - np.clip(values[:, None], low, high)
    expected = (outside**2).mean(axis=0)
    np.testing.assert_allclose(ExactValues(values).clipping(low, high)[0], expected, rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(ExactValues(values[None], 0).clipping(low, high)[0], expected, rtol=1e-4, atol=1e-12)
    counted = BinnedValues(stats_of([values])).clipping(low, high)[0]
    np.testing.assert_allclose(counted, expected, rtol=0.03, atol=1e-4)
