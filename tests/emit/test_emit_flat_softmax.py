"""Probabilities that are all small: onnxruntime's integer Softmax overflows on them, so it must not be used there."""

import numpy as np
import onnxruntime as ort
import pytest

import quantry
from onnx_oracle import from_text
from quantry import MemoryStore

ATTENTION = """<ir_version: 8, opset_import: ["": 17]> g (float[1,64,16] x) => (float[1,64,16] y) {
    q = MatMul(x, wq) k = MatMul(x, wk) t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, t) p = Softmax<axis = -1>(s)
    v = MatMul(p, x) y = MatMul(v, wv) }"""


def attention(gain: float) -> bytes:
    random = np.random.default_rng(0)
    scaled = {"wq": gain, "wk": gain, "wv": 1.0}
    weights = {name: (random.standard_normal((16, 16)) * size).astype(np.float32) for name, size in scaled.items()}
    return from_text(ATTENTION, **weights).SerializeToString()


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": (2 + random.standard_normal((1, 64, 16))).astype(np.float32)} for _ in range(4)]


def decibels(model: bytes, written: bytes) -> float:
    (expected,), (found,) = (ort.InferenceSession(content).run(None, samples()[0]) for content in (model, written))
    return float(10 * np.log10(np.square(expected).sum() / np.square(expected - found).sum()))


@pytest.mark.parametrize("preset", ["S8S8_AAWS", "U8S8_AAWS", "CPU_INT8", "XINT8"])
def test_flat_attention_survives_all_optimizations(preset: str) -> None:
    model = attention(0.05)
    result = quantry.quantize(model, samples(), preset, store=None)
    assert decibels(model, result.to_bytes()) > 25


def test_the_graph_follows_the_scale_and_not_an_earlier_result() -> None:
    # Both models have the same structure, so their files share what does not depend on scales.
    store = MemoryStore()
    for gain, is_hidden in ((0.5, False), (0.05, True), (0.5, False)):
        result = quantry.quantize(attention(gain), samples(), "CPU_INT8", store=store)
        assert (b"unchanged" in result.to_bytes()) is is_hidden


def test_operator_format_computes_flat_attention_in_float() -> None:
    from dataclasses import replace

    from quantry.recipe import PRESETS, EmitOptions, QOperator

    recipe = replace(PRESETS["CPU_INT8"].recipe, emit=EmitOptions(format=QOperator()))
    model = attention(0.05)
    written = quantry.quantize(model, samples(), recipe, store=None).to_bytes()
    assert b"QLinearSoftmax" not in written
    assert decibels(model, written) > 25
