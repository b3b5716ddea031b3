"""Every calibration method passes the conformance suite."""

import numpy as np
import pytest

from quantry.errors import RecipeError
from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid
from quantry.recipe import (
    BestPercentile,
    DataType,
    Distribution,
    Entropy,
    LayerWisePercentile,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
)
from quantry.scale import ExactValues, find_range
from quantry.scale.ranges import RANGE_METHODS
from quantry.testing.range_suite import SAMPLES, RangeMethodSuite


class TestMinMax(RangeMethodSuite):
    @pytest.fixture(params=[MinMax(), MinMax(moving_average=0.01)], ids=str)
    def method(self, request):
        return request.param


class TestPercentile(RangeMethodSuite):
    @pytest.fixture(params=[Percentile(99.0), Percentile(100.0), Percentile(99.0, symmetric=False)], ids=str)
    def method(self, request):
        return request.param


class TestEntropy(RangeMethodSuite):
    @pytest.fixture(params=[Entropy(), Entropy(bins=256, quantized_bins=32)], ids=str)
    def method(self, request):
        return request.param


class TestMinMSE(RangeMethodSuite):
    @pytest.fixture
    def method(self):
        return MinMSE()


class TestNonOverflow(RangeMethodSuite):
    @pytest.fixture
    def method(self):
        return NonOverflow()


class TestLayerWisePercentile(RangeMethodSuite):
    @pytest.fixture(params=[LayerWisePercentile(), LayerWisePercentile((90.0, 99.0, 99.9), metric="mse")], ids=str)
    def method(self, request):
        return request.param


class TestDistribution(RangeMethodSuite):
    @pytest.fixture(params=[Distribution(), Distribution(power=1 / 3)], ids=str)
    def method(self, request):
        return request.param


class TestBestPercentile(RangeMethodSuite):
    @pytest.fixture(params=[BestPercentile(), BestPercentile(90.0, symmetric=False)], ids=str)
    def method(self, request):
        return request.param


def test_best_percentile_is_better_than_any_of_a_dense_row():
    values = ExactValues(SAMPLES["normal"])
    grid = Grid(DataType.INT4, symmetric=True)

    def error(method):
        chosen = affine(find_range(values, method, grid), grid)
        scale, zero_point = chosen.scale[:, None].astype(float), chosen.zero_point[:, None].astype(float)
        return values.error(scale, zero_point, grid, 2)[0, 0]

    best = error(BestPercentile(90.0))
    assert best <= 1.01 * min(error(Percentile(percent)) for percent in np.linspace(90, 100, 101))


@pytest.mark.parametrize("options", [{"lowest": 0.99}, {"lowest": 100.0}, {"metric": "max"}])
def test_best_percentile_refuses_what_it_cannot_search(options):
    with pytest.raises(RecipeError, match="BestPercentile"):
        BestPercentile(**options)


def test_every_method_of_the_recipe_is_in_the_table():
    from typing import get_args

    from quantry.recipe import Method

    assert {options for options, _ in RANGE_METHODS} == set(get_args(Method))


def test_unknown_method_raises_with_the_known_ones():
    with pytest.raises(RecipeError, match=r"one of MinMax, Percentile.*got 'minmax'; in the scale stage"):
        find_range(ExactValues(SAMPLES["normal"]), "minmax", Grid(DataType.INT8, symmetric=True))


def test_distribution_gives_values_the_spread_of_the_type() -> None:
    values = np.random.default_rng(0).normal(0.0, 3.0, 20_000).astype(np.float32)
    grid = Grid(DataType.FLOAT8E4M3FN, symmetric=True)
    found = affine(find_range(ExactValues(values.reshape(1, -1)), Distribution(), grid), grid)
    # onnxruntime divides by the deviation of all finite values of the type.
    assert float(found.scale[0]) == pytest.approx(3.0 / float(np.std(grid.levels)), rel=0.02)
    with pytest.raises(RecipeError, match="power"):
        Distribution(power=0.0)
