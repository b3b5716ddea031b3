"""Latency on a clock that the test moves, and once on a real one."""

import numpy as np
import pytest
from onnx import parser

from quantry.errors import RecipeError
from quantry.evaluate import latency, measure_latency
from quantry.evaluate.latency import summarize_pairs
from quantry.runtime.sessions import deployment_session


class Clock:
    def __init__(self):
        self.now = 0
        self.runs = []

    def perf_counter_ns(self):
        return self.now


class FakeSession:
    """Takes a given time, and longer while the machine is busy."""

    def __init__(self, clock, name, milliseconds, load):
        self.clock, self.name, self.milliseconds, self.load = clock, name, milliseconds, load

    def run(self, names, feeds):
        self.clock.now += int(self.milliseconds * 1e6 * self.load(len(self.clock.runs)))
        self.clock.runs.append(self.name)


def _measure(monkeypatch, load, runs=20):
    clock = Clock()
    monkeypatch.setattr(latency, "time", clock)
    sessions = (FakeSession(clock, name, ms, load) for name, ms in (("float", 8.0), ("quantized", 2.0)))
    return measure_latency(*sessions, {}, runs), clock


def test_times_are_those_of_each_model(monkeypatch):
    result, _ = _measure(monkeypatch, load=lambda run: 1)
    assert (result.float_ms, result.quantized_ms, result.ratio, result.runs) == (8, 2, 0.25, 20)
    assert result.speedup == 4
    assert result.float_quartiles == (8, 8)


def test_load_that_comes_and_goes_leaves_the_ratio_alone(monkeypatch):
    result, _ = _measure(monkeypatch, load=lambda run: 3 if run // 7 % 2 else 1)
    assert result.ratio == 0.25
    assert result.float_quartiles == (8, 24)


def test_cold_first_runs_are_not_counted(monkeypatch):
    result, clock = _measure(monkeypatch, load=lambda run: 100 if run < 6 else 1, runs=3)
    assert result.float_ms == 8
    assert len(clock.runs) > 2 * 3


def test_models_take_turns_and_so_does_the_first_place(monkeypatch):
    _, clock = _measure(monkeypatch, load=lambda run: 1)
    pairs = [tuple(clock.runs[start : start + 2]) for start in range(0, len(clock.runs), 2)]
    assert set(pairs[::2]) == {("float", "quantized")}
    assert set(pairs[1::2]) == {("quantized", "float")}


def test_a_clock_that_does_not_move_gives_a_ratio(monkeypatch):
    result, _ = _measure(monkeypatch, load=lambda run: 0)
    assert result.ratio == 1


def test_quartiles_are_numpys():
    pairs = np.random.default_rng(0).uniform(1, 2, (31, 2))
    result = summarize_pairs(pairs)
    assert result.quantized_quartiles == pytest.approx(np.percentile(pairs[:, 1], [25, 75]))
    assert result.ratio == pytest.approx(np.median(pairs[:, 1] / pairs[:, 0]))
    assert result.ratio_quartiles == pytest.approx(np.percentile(pairs[:, 1] / pairs[:, 0], [25, 75]))


def test_a_real_model_next_to_itself_has_a_ratio_near_one():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]>
        m (float[64,64] x) => (float[64,64] y) { a = MatMul(x, x)  y = MatMul(a, x) }"""
    ).SerializeToString()
    sessions = [deployment_session(model, threads=1, interleaved=True) for _ in range(2)]
    result = measure_latency(*sessions, {"x": np.eye(64, dtype=np.float32)}, 40)
    assert 0 < result.float_ms < 1000
    assert result.float_quartiles[0] <= result.float_ms <= result.float_quartiles[1]
    assert 0.3 < result.ratio < 3
    assert "cores" in result.machine


def test_no_runs_at_all_is_an_error():
    with pytest.raises(RecipeError, match="at least 1, got 0"):
        measure_latency(None, None, {}, 0)
