"""Parameters of an activation are computed once and dropped with its statistics."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from quantry.graph.quant_plan import OwnRange
from quantry.numerics.scalar_function import IDENTITY, ScalarFunction
from quantry.observe import Statistics
from quantry.recipe import DataType, Method, MinMax, MinMSE, Percentile, TensorSpec
from quantry.scale import activations, parameter_cache
from quantry.scale.activations import activation_params
from quantry.testing.range_suite import stats_of

SIGMOID = ScalarFunction("Sigmoid", (), (IDENTITY,))


def observed() -> Statistics:
    return Statistics({"x": stats_of([[-3.0, 1.0, 2.0, 40.0]])}, 1)


def test_each_range_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Method] = []
    find_range = activations.find_range

    def count(values, method, grid):
        asked.append(method)
        return find_range(values, method, grid)

    monkeypatch.setattr(activations, "find_range", count)
    statistics = observed()
    int8, uint8 = OwnRange(TensorSpec()), OwnRange(TensorSpec(DataType.UINT8, symmetric=False))
    questions = [(int8, MinMax(), {}), (int8, MinMSE(), {}), (uint8, MinMSE(), {}), (int8, MinMSE(), {"x": (SIGMOID,)})]
    first = [activation_params({"x": plan}, statistics, method, readers) for plan, method, readers in questions]
    again = [activation_params({"x": plan}, statistics, method, readers) for plan, method, readers in questions]
    assert [found["x"] for found in again] == [found["x"] for found in first]
    assert len({found["x"] for found in first}) == len(questions)
    assert asked == [method for _, method, _ in questions]


def test_cache_is_bounded_and_is_dropped_with_the_statistics() -> None:
    before, statistics, plans = len(parameter_cache._CACHED), observed(), {"x": OwnRange(TensorSpec())}
    for step in range(80):
        activation_params(plans, statistics, Percentile(50.0 + step / 2))
    kept = parameter_cache._CACHED[statistics.tensors["x"]]
    assert len(kept) == 64
    assert (Percentile(89.5), TensorSpec(), ()) in kept
    del kept, statistics
    gc.collect()
    assert len(parameter_cache._CACHED) <= before


def test_threads_may_share_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_cache, "_LIMIT", 2)
    statistics, plans = observed(), {"x": OwnRange(TensorSpec())}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as executor:
            asked = [Percentile(50.0 + step % 40) for step in range(2000)]
            found = list(executor.map(lambda method: activation_params(plans, statistics, method)["x"], asked))
    finally:
        sys.setswitchinterval(before)
    alone = {method: activation_params(plans, observed(), method)["x"].scale for method in asked[:40]}
    assert all(params.scale == alone[method] for method, params in zip(asked, found, strict=True))
