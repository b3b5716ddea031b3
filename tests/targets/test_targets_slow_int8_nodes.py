"""`auto` leaves nodes in float that are slower with integers; measurements are stored."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import quantry
from quantry.auto import AutoResult
from quantry.memo import MemoryStore
from quantry.targets import slow_int8_nodes
from quantry.targets.backends import OrtCpu
from quantry.targets.slow_int8_nodes import SlowNodes, SpeedOverFloat

_TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,64,64] x) => (float[1,64,64,8] y) {
    c = Conv <kernel_shape = [1, 1]> (x, w)
    t = Transpose <perm = [0, 2, 3, 1]> (c)
    y = Softmax <axis = -1> (t)
}"""


def network() -> onnx.ModelProto:
    model = parser.parse_model(_TEXT)
    weights = np.random.default_rng(0).normal(size=(8, 8, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, 8, 64, 64)).astype(np.float32)} for _ in range(2)]


def quantized(store: MemoryStore) -> AutoResult:
    result = quantry.quantize(network(), samples(), target="ort-cpu", store=store, effort="low")
    assert isinstance(result, AutoResult)
    return result


def test_integer_softmax_stays_float_if_it_is_faster_here_and_no_less_accurate() -> None:
    result = quantized(MemoryStore())
    kept = [label for label in result.auto.kept if "Softmax" in label]
    softmax = next(e for e in OrtCpu().placement(result.to_bytes(), samples()[0]) if e.operator == "Softmax")
    # What is slower depends on the machine; the report and the model must say the same.
    assert bool(kept) <= (softmax.kernel == "Softmax")
    assert bool(kept) <= any(entry.operator == "Softmax" for entry in result.declined)


def test_measurements_are_stored_so_the_model_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    first = quantized(store).to_bytes()
    monkeypatch.setattr(OrtCpu, "placement", lambda *_: pytest.fail("it must not be measured again"))
    monkeypatch.setattr(slow_int8_nodes, "measure_on_target", lambda *_: pytest.fail("it must not be timed again"))
    assert quantized(store).to_bytes() == first


def test_nothing_is_measured_for_a_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrtCpu, "placement", lambda *_: pytest.fail("nothing may be measured"))
    quantry.quantize(network(), samples(), "RECOMMENDED-CPU", target="ort-cpu", store=None)


def test_measurements_survive_the_store() -> None:
    for value in (SlowNodes(("c", "p"), ("Conv", "AveragePool"), 1.5), SpeedOverFloat(0.9, 0.8, 1.0, "it is slow")):
        assert type(value).from_blob(value.to_blob()) == value
