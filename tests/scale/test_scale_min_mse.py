"""MinMSE with float scales against scipy's brute force."""

import numpy as np
import pytest
from scipy import optimize

from quantry.numerics.grid import Grid, Range
from quantry.numerics.rounding import fake_quantize
from quantry.recipe import DataType, MinMax, MinMSE
from quantry.scale import BinnedValues, ExactValues, Observed, find_range
from quantry.testing.range_suite import SAMPLES, params_of, stats_of


def with_more() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    x = rng.normal(size=6000) * 2
    return {
        **SAMPLES,
        "swish": (x / (1 + np.exp(-x))).astype(np.float32),
        "outliers": np.concatenate([rng.normal(size=4000), [200, -90]]).astype(np.float32),
        "uniform": rng.uniform(-1, 1, 4000).astype(np.float32),
    }


VALUES = with_more()


def error(values: np.ndarray, low: float, high: float, grid: Grid) -> float:
    params = params_of(Range(np.array([low]), np.array([high])), grid)
    return float(((fake_quantize(values, params).astype(np.float64) - values) ** 2).mean())


def chosen_error(observed: Observed, values: np.ndarray, grid: Grid) -> float:
    interval = find_range(observed, MinMSE(), grid)
    return error(values, interval.low[0], interval.high[0], grid)


@pytest.mark.parametrize("dtype", [DataType.INT4, DataType.INT8], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("sample", VALUES)
def test_symmetric_scale_is_within_one_percent_of_brute_force(sample, dtype):
    values, grid = VALUES[sample], Grid(dtype, symmetric=True)
    largest = float(np.abs(values).max())
    candidates = [slice(0.02, 1.001, 0.005)]
    best = optimize.brute(
        lambda x: error(values, -largest * x[0], largest * x[0], grid), candidates, finish=None, full_output=True
    )[1]
    assert chosen_error(ExactValues(values), values, grid) <= best * 1.01
    assert chosen_error(ExactValues(values[None], axis=0), values, grid) <= best * 1.01
    assert chosen_error(BinnedValues(stats_of([values])), values, grid) <= best * 1.05


@pytest.mark.parametrize("dtype", [DataType.UINT4, DataType.UINT8], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("sample", VALUES)
def test_asymmetric_scale_is_within_one_percent_of_brute_force(sample, dtype):
    values, grid = VALUES[sample], Grid(dtype, symmetric=False)
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    steps = slice(0.05, 1.01, 0.05)
    best = optimize.brute(
        lambda x: error(values, low * x[0], high * x[1], grid), [steps, steps], finish=None, full_output=True
    )[1]
    for observed in (ExactValues(values), ExactValues(values[None], axis=0)):
        assert chosen_error(observed, values, grid) <= best * 1.01


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("sample", VALUES)
def test_error_is_never_above_that_of_min_max(sample, symmetric):
    for dtype in (DataType.INT4, DataType.INT8, DataType.INT16):
        values, grid = VALUES[sample], Grid(dtype, symmetric)
        whole = find_range(ExactValues(values), MinMax(), grid)
        assert chosen_error(ExactValues(values), values, grid) <= error(values, whole.low[0], whole.high[0], grid) * (
            1 + 1e-3
        )


@pytest.mark.parametrize("centre", [4.87, -3.3, 611.0])
@pytest.mark.parametrize("spread", [1e-5, 0.001, 0.004])
def test_a_level_lies_close_to_values_that_are_almost_constant(centre, spread):
    values = (centre * (1 + spread * np.random.default_rng(3).uniform(-1, 1, 4000))).astype(np.float32)
    grid = Grid(DataType.UINT8, symmetric=False)
    ends = sorted((0.0, centre))
    best = min(error(values, *(end * (1 + x) for end in ends), grid) for x in np.linspace(-0.02, 0.02, 800))
    step = abs(centre) / 255
    assert chosen_error(BinnedValues(stats_of([values])), values, grid) <= best * 1.3 + (0.06 * step) ** 2
