"""Nodes that are slower with integers stay float if speed and accuracy both gain; measurements are stored."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import quantry
from quantry.memo import MemoryStore
from quantry.recipe import PRESETS
from quantry.targets import faster_in_float
from quantry.targets.backends import OrtCpu
from quantry.targets.faster_in_float import SlowNodes, Speed

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


def quantized(store: MemoryStore, **options: Any) -> Any:
    return quantry.quantize(network(), samples(), "RECOMMENDED-CPU", store=store, **options)


def test_integer_softmax_stays_float_if_it_is_slower_here() -> None:
    result = quantized(MemoryStore(), target="ort-cpu")
    told = [note for note in result.notes if "stay float, because" in str(note)]
    softmax = next(e for e in OrtCpu().placement(result.to_bytes(), samples()[0]) if e.operator == "Softmax")
    # What is slower depends on the machine; the note and the model must say the same.
    assert bool(told) == (softmax.kernel == "Softmax")
    assert bool(told) == any(entry.operator == "Softmax" for entry in result.declined)


def test_measurements_are_stored_so_the_model_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    first = quantized(store, target="ort-cpu").to_bytes()
    monkeypatch.setattr(OrtCpu, "placement", lambda *_: pytest.fail("it must not be measured again"))
    monkeypatch.setattr(faster_in_float, "measure_on_target", lambda *_: pytest.fail("it must not be timed again"))
    assert quantized(store, target="ort-cpu").to_bytes() == first


def test_nothing_is_measured_without_a_target_or_for_other_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrtCpu, "placement", lambda *_: pytest.fail("nothing may be measured"))
    quantized(MemoryStore())
    assert not PRESETS["CPU_INT8"].recipe.evaluate.fall_back
    quantry.quantize(network(), samples(), "CPU_INT8", target="ort-cpu", store=None)


def test_all_slow_nodes_are_tried_first_and_products_last() -> None:
    slow = SlowNodes(("c", "p"), ("Conv", "AveragePool"), 1.5)
    assert list(faster_in_float._choices(slow)) == [("c", "p"), ("p",)]
    assert list(faster_in_float._choices(SlowNodes(("p",), ("AveragePool",), 1.5))) == [("p",)]
    assert list(faster_in_float._choices(SlowNodes((), (), 0.0))) == []
    for value in (slow, Speed(1.5), Speed(0.9, "it is slow")):
        assert type(value).from_blob(value.to_blob()) == value
