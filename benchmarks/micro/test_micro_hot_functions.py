"""The hot functions, each alone. Run: make bench-micro."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantry.data.open_data import calibration_data
from quantry.data.random_data import RandomData
from quantry.emit import emit
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import fingerprint_array
from quantry.numerics.grid import Grid
from quantry.numerics.histogram import TensorStats
from quantry.observe import Statistics, observe
from quantry.observe.counting import CountingSpace, TensorCounter
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import (
    PRESETS,
    Entropy,
    Method,
    MinMax,
    MinMSE,
    ObserveOptions,
    Percentile,
    PowerOfTwoScale,
    PrepareOptions,
    Recipe,
    TensorSpec,
)
from quantry.scale import BinnedValues, ExactValues, find_range, scale

_MILLION = 1 << 20
_RECIPE: Recipe = PRESETS["CPU_INT8"].recipe
_METHODS: tuple[Method, ...] = (MinMax(), Percentile(99.99), Entropy(), MinMSE())
_SPECS = {
    "symmetric": TensorSpec(),
    "asymmetric": TensorSpec(symmetric=False),
    "power of two": TensorSpec(scale=PowerOfTwoScale()),
}

Benchmark = Callable[..., Any]


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(0).laplace(size=_MILLION).astype(np.float32)


@pytest.fixture(scope="module")
def stats(values: np.ndarray) -> TensorStats:
    codes, counts = np.unique(values.view(np.uint32) >> 16, return_counts=True)
    low, high = values.min(), values.max()
    return TensorStats(
        float(low), float(high), values.size, 0, 0, low[None], high[None], codes.astype(np.uint16), counts
    )


@pytest.fixture(scope="module")
def model() -> FloatModel:
    from quantry import demo

    return prepare(model_source(demo.model_path()), PrepareOptions())


@pytest.fixture(scope="module")
def planned(model: FloatModel) -> QuantPlan:
    return plan(model, _RECIPE.plan)


@pytest.fixture(scope="module")
def statistics(model: FloatModel) -> Statistics:
    return observe(model, calibration_data(RandomData(samples=1), model.inputs), ObserveOptions())


def test_histogram_update_of_a_million_values(benchmark: Benchmark, values: np.ndarray) -> None:
    counter = TensorCounter(CountingSpace())
    benchmark(counter.add, values)


@pytest.mark.parametrize("kind", _SPECS)
@pytest.mark.parametrize("method", _METHODS, ids=lambda method: type(method).__name__)
def test_range_search_over_a_histogram(benchmark: Benchmark, stats: TensorStats, method: Method, kind: str) -> None:
    grid = Grid.of(_SPECS[kind])
    # A fresh view each time: it computes its sums on first use, and each tensor is searched once.
    benchmark(lambda: find_range(BinnedValues(stats), method, grid))


@pytest.mark.parametrize("kind", _SPECS)
def test_range_search_over_the_channels_of_a_weight(benchmark: Benchmark, kind: str) -> None:
    weight = np.random.default_rng(0).normal(size=(256, 256 * 9)).astype(np.float32)
    grid = Grid.of(_SPECS[kind])
    benchmark(lambda: find_range(ExactValues(weight), MinMSE(), grid))


def test_fingerprint_of_64_megabytes(benchmark: Benchmark) -> None:
    array = np.random.default_rng(0).standard_normal(16 * _MILLION, np.float32)
    benchmark(fingerprint_array, array)


def test_prepare_the_demo_detector(benchmark: Benchmark) -> None:
    from quantry import demo

    benchmark(lambda: prepare(model_source(demo.model_path()), PrepareOptions()))


def test_plan_the_demo_detector(benchmark: Benchmark, model: FloatModel) -> None:
    benchmark(plan, model, _RECIPE.plan)


def test_scale_the_demo_detector(
    benchmark: Benchmark, model: FloatModel, planned: QuantPlan, statistics: Statistics
) -> None:
    benchmark(scale, model, statistics, planned, _RECIPE.scale)


def test_emit_the_demo_detector(
    benchmark: Benchmark, model: FloatModel, planned: QuantPlan, statistics: Statistics
) -> None:
    params = scale(model, statistics, planned, _RECIPE.scale)
    benchmark(lambda: emit(model, planned, params, _RECIPE.emit, {}).to_bytes())
