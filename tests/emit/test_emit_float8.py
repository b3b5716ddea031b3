"""Q/DQ pairs of 8-bit floats in standard ONNX: what is written, what onnxruntime computes, which target accepts it."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import quantry
from onnx_oracle import from_text, run
from quantry.errors import RecipeError
from quantry.execute.simulation import simulate
from quantry.recipe import PRESETS, DataType, DerivedBias, EmitOptions, MinMSE, ScaleOptions, VitisQdq
from quantry.recipe.formats import VitisDialect
from quantry.targets import check_model

RANDOM = np.random.default_rng(5)
TEXT = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,3,12,12] x) => (float[1,5] y) {
    a = Conv <pads = [1,1,1,1]> (x, w0, b0)
    b = Relu (a)
    c = Conv <pads = [1,1,1,1]> (b, w1, b1)
    d = Add (c, b)
    e = Relu (d)
    f = GlobalAveragePool (e)
    g = Flatten (f)
    h = MatMul (g, w2)
    y = Gemm (h, w3, b3)
}"""


def weights() -> dict[str, np.ndarray]:
    shapes = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 8, 3, 3), "b1": (8,), "w2": (8, 6), "w3": (6, 5), "b3": (5,)}
    return {name: RANDOM.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}


MODEL = from_text(TEXT, **weights())
SAMPLES = [{"x": RANDOM.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(4)]
FLOAT8 = {"FP8_E4M3": DataType.FLOAT8E4M3FN, "FP8_E5M2": DataType.FLOAT8E5M2}


def quantized(recipe: object) -> onnx.ModelProto:
    result = quantry.quantize(MODEL.SerializeToString(), SAMPLES, recipe, store=None)
    return onnx.load_model_from_string(result.to_bytes())


@pytest.mark.parametrize("name", FLOAT8)
def test_products_read_8_bit_floats_through_standard_pairs(name: str) -> None:
    model = quantized(name)
    kind = getattr(onnx.TensorProto, FLOAT8[name].name)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version >= 9
    assert model.opset_import[0].version >= 19
    constants = {entry.name: entry for entry in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    pairs = [
        node for node in model.graph.node if node.op_type.endswith("QuantizeLinear") or "Dequantize" in node.op_type
    ]
    assert {constants[node.input[2]].data_type for node in pairs} == {kind}
    assert {node.domain for node in pairs} == {""}
    products = [node for node in model.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    read = {node.name: [producers[name].op_type for name in node.input[:2] if name in producers] for node in products}
    # The first Conv reads the image in float.
    assert sorted(map(len, read.values())) == [0, 2, 2, 2]
    scales = {n.input[0]: constants[n.input[1]].dims for n in pairs if n.input[0] in constants}
    assert sorted(map(list, scales.values())) == [[5], [6], [8]]


@pytest.mark.parametrize("name", FLOAT8)
def test_onnxruntime_computes_what_the_simulation_says(name: str) -> None:
    result = quantry.quantize(MODEL.SerializeToString(), SAMPLES, name, store=None)
    written = run(result.to_bytes(), SAMPLES[0])["y"]
    copy = simulate(result.stages.written.value.model, result.plan, result.params).model
    np.testing.assert_allclose(run(copy, SAMPLES[0])["y"], written, rtol=1e-5, atol=1e-6)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(result.to_bytes(), options)
    np.testing.assert_allclose(session.run(None, SAMPLES[0])[0], written, rtol=1e-5, atol=1e-6)
    exact = run(MODEL, SAMPLES[0])["y"]
    noise = np.square(written - exact).sum() / np.square(exact).sum()
    assert noise < (0.01 if name == "FP8_E4M3" else 0.05)
    optimized = ort.InferenceSession(result.to_bytes()).run(None, SAMPLES[0])[0]
    np.testing.assert_allclose(optimized, written, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


def test_interpreter_computes_what_onnxruntime_computes() -> None:
    pytest.importorskip("torch")
    import torch

    from quantry.execute.graph_builder import GraphDefinition
    from quantry.execute.trainable_graph import TrainableGraph, Trained

    result = quantry.quantize(MODEL.SerializeToString(), SAMPLES, "FP8_E4M3", store=None)
    model = result.stages.written.value
    definition = GraphDefinition(model=model, plan=result.plan, params=result.params)
    graph = TrainableGraph(definition, list(model.model.graph), ["y"], Trained())
    found = graph.run({"x": torch.from_numpy(SAMPLES[0]["x"])}, quantized=True)["y"].detach().numpy()
    np.testing.assert_allclose(found, run(result.to_bytes(), SAMPLES[0])["y"], rtol=1e-4, atol=1e-5)


def test_tensorrt_accepts_e4m3_and_no_e5m2() -> None:
    found = {name: {broken.rule for broken in check_model(quantized(name), "tensorrt")} for name in FLOAT8}
    assert "type" not in found["FP8_E4M3"]
    assert "type" in found["FP8_E5M2"]


def test_calibration_by_least_error_works() -> None:
    recipe = PRESETS["FP8_E4M3"].recipe
    searched = replace(recipe, scale=ScaleOptions(activation=MinMSE(), weight=MinMSE()))
    exact = run(MODEL, SAMPLES[0])["y"]
    errors = [np.square(run(quantized(entry), SAMPLES[0])["y"] - exact).sum() for entry in (searched, recipe)]
    assert errors[0] < 3 * errors[1]


def test_formats_and_biases_without_8_bit_floats_are_refused() -> None:
    recipe = PRESETS["FP8_E4M3"].recipe
    with pytest.raises(RecipeError, match="float8e4m3fn"):
        replace(recipe, emit=EmitOptions(VitisQdq(VitisDialect.QUARK)))
    with pytest.raises(RecipeError, match="FloatBias"):
        replace(recipe, plan=replace(recipe.plan, bias=DerivedBias()))


FUSED = {
    "relu": "{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }",
    "clip": "{ a = MatMul(x, w) b = Clip(a, low, high) y = MatMul(b, w) }",
    "transpose": "{ a = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(a) s = MatMul(a, t) y = MatMul(s, a) }",
    "slice": "{ a = MatMul(x, w) b = Slice(a, zero, eight, one) y = MatMul(b, w) }",
    "pool": "{ a = MatMul(x, w) b = MaxPool<kernel_shape = [3], pads = [1, 1]>(a) y = MatMul(b, w) }",
    "gemm": "{ r = Reshape(x, flat) a = Gemm(r, w) b = Relu(a) c = Gemm(b, w, bias) y = Reshape(c, deep) }",
    "conv": "{ a = Conv<pads = [1, 1]>(x, k) b = Relu(a) c = Conv<pads = [1, 1]>(b, k) y = Conv<pads = [1, 1]>(c, k) }",
}


@pytest.mark.parametrize("body", FUSED.values(), ids=FUSED)
@pytest.mark.parametrize("name", FLOAT8)
def test_sessions_with_all_optimizations_compute_what_is_written(name: str, body: str) -> None:
    random = np.random.default_rng(1)
    constants = {"w": random.normal(size=(8, 8)), "k": random.normal(size=(8, 8, 3)) / 2, "bias": random.normal(size=8)}
    constants |= {"low": np.array(0.0), "high": np.array(6.0)}
    numbers = {"zero": [0], "one": [1], "eight": [8], "flat": [8, 8], "deep": [1, 8, 8]}
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1,8,8] x) => (float[1,8,8] y) {body}'
    used = {
        key: np.asarray(value, np.float32) for key, value in constants.items() if f"{key})" in body or f"{key}," in body
    }
    used |= {key: np.array(value) for key, value in numbers.items() if f" {key}" in body}
    model = from_text(text, **used)
    samples = [{"x": random.normal(size=(1, 8, 8)).astype(np.float32)} for _ in range(3)]
    written = quantry.quantize(model.SerializeToString(), samples, name, store=None).to_bytes()
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = ort.InferenceSession(written, plain).run(None, samples[0])[0]
    found = ort.InferenceSession(written).run(None, samples[0])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
