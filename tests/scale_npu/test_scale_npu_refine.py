"""Refinement on whole models: which positions move, and that the written model stays right."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import quantry
from quantry.numerics.power_of_two import position_of
from quantry.quantization import QuantizationResult
from quantry.recipe import PRESETS, NpuConversions, NpuLimits, Recipe
from quantry.targets import check_model

XINT8 = PRESETS["XINT8"].recipe
WITHOUT_LIMITS = replace(XINT8, scale=replace(XINT8.scale, npu=None))


def graph(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()
    )
    return proto


def quantized(proto: onnx.ModelProto, recipe: Recipe, **inputs: np.ndarray) -> QuantizationResult:
    return quantry.quantize(
        proto, [{name: np.asarray(x, np.float32) for name, x in inputs.items()}], recipe, store=None
    )


def run(content: bytes, **feeds: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(x, np.float32) for name, x in feeds.items()})[0]


def position(result: QuantizationResult, tensor: str) -> int | None:
    return position_of(float(result.params.tensors[tensor].scale))


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)


# Tiny weights with a large bias: the accumulator is cut by 23 bits, 7 more than the NPU can. Rewriting only the scale
# of the weight, and not its integers, multiplies it by 128; the bias is then out of reach by one bit and is halved.
TINY = {"w": random(4, 4, 1, 1) / 600, "b": np.array([100.0, -90.0, 75.0, 60.0])}
TINY_TEXT = "g (float[1,4,6,6] x) => (float[1,4,6,6] y) { y = Conv(x, w, b) }"


def test_stored_integers_follow_moved_positions() -> None:
    proto, x = graph(TINY_TEXT, **TINY), random(1, 4, 6, 6)
    before, after = quantized(proto, WITHOUT_LIMITS, x=x), quantized(proto, XINT8, x=x)
    assert position(before, "w") == 16
    assert position(after, "w") == 8
    assert position(after, "b") == position(before, "b") == 0
    stored = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load_from_string(after.to_bytes()).graph.initializer
    }
    np.testing.assert_array_equal(stored["w_quantized"], np.rint(TINY["w"] * 2.0**8))
    np.testing.assert_array_equal(stored["b_quantized"], TINY["b"])


def test_model_with_moved_weight_stays_within_half_a_step_of_the_float_one() -> None:
    proto, x = graph(TINY_TEXT, **TINY), random(1, 4, 6, 6)
    result = quantized(proto, XINT8, x=x)
    step = float(result.params.tensors["y"].scale)
    expected, actual = run(proto.SerializeToString(), x=x), run(result.to_bytes(), x=x)
    assert np.abs(actual - expected).max() <= 0.51 * step
    assert check_model(result.to_bytes(), "npu-int8") == ()


def test_model_without_refinement_breaks_the_cut() -> None:
    result = quantized(graph(TINY_TEXT, **TINY), WITHOUT_LIMITS, x=random(1, 4, 6, 6))
    assert {violation.rule for violation in check_model(result.to_bytes(), "npu-int8")} == {"shift cut", "shift bias"}


JOIN = """g (float[1,2,4,4] x, float[1,2,2,2] z) => (float[1,4,2,2] y)
{ a = Relu(x) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a) s = Concat<axis=1>(p, z) y = Relu(s) }"""


def test_aligning_a_shared_tensor_moves_all_that_share_with_it() -> None:
    inputs = {"x": random(1, 2, 4, 4), "z": 20 * random(1, 2, 2, 2)}
    before = quantized(graph(JOIN), WITHOUT_LIMITS, **inputs)
    after = quantized(graph(JOIN), XINT8, **inputs)
    assert position(before, "p") == position(before, "a") == 7
    assert position(before, "z") == 2
    assert {position(after, tensor) for tensor in ("a", "p", "z", "s")} == {2}
    assert {int(after.params.tensors[tensor].zero_point) for tensor in ("a", "p", "z", "s")} == {128}
    assert check_model(after.to_bytes(), "npu-int8") == ()
    assert [violation.rule for violation in check_model(before.to_bytes(), "npu-int8")] == ["align concat"]


def test_notes_count_the_moves_of_each_limit() -> None:
    result = quantized(graph(JOIN), XINT8, x=random(1, 2, 4, 4), z=20 * random(1, 2, 2, 2))
    assert "npu: positions moved to satisfy limits: align concat 1" in map(str, result.params.notes)


def test_switched_off_limit_moves_nothing() -> None:
    recipe = replace(XINT8, scale=replace(XINT8.scale, npu=NpuLimits(align_concat=False)))
    result = quantized(graph(JOIN), recipe, x=random(1, 2, 4, 4), z=20 * random(1, 2, 2, 2))
    assert position(result, "p") == 7
    assert result.params.notes == ()


def gate_beside_a_wide_neighbour(gate: str) -> onnx.ModelProto:
    body = f"c = MatMul(x, w) h = {gate}(c) s = Concat<axis=1>(h, z) y = Relu(s)"
    return graph(f"g (float[1,4] x, float[1,4] z) => (float[1,8] y) {{ {body} }}", w=np.eye(4))


def test_limits_that_exclude_each_other_are_reported() -> None:
    # HardSigmoid writes position 7 or finer, and Concat wants it at that of its wide neighbour.
    proto = gate_beside_a_wide_neighbour("HardSigmoid<alpha=0.2>")
    result = quantized(proto, XINT8, x=random(1, 4), z=50 * random(1, 4))
    assert any("do not hold after 5 rounds" in str(note) for note in result.params.notes)
    assert [violation.rule for violation in check_model(result.to_bytes(), "npu-int8")] == ["align concat"]


def test_correction_after_hard_sigmoid_lets_it_join_a_wide_neighbour() -> None:
    result = quantized(gate_beside_a_wide_neighbour("Sigmoid"), XINT8, x=random(1, 4), z=50 * random(1, 4))
    assert check_model(result.to_bytes(), "npu-int8") == ()


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_small_network_with_every_kind_of_operator_passes_the_check(factor: float) -> None:
    text = """g (float[1,4,14,14] x) => (float[1,6] y) {
        c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)
        g1 = Sigmoid(c1)
        a1 = Mul(c1, g1)
        c2 = Conv(a1, w2, b2)
        l2 = LeakyRelu<alpha=0.1>(c2)
        d = Sub(l2, a1)
        e = Add(d, l2)
        r = Relu(e)
        m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
        v = AveragePool<kernel_shape=[2,2], strides=[2,2]>(a1)
        j = Concat<axis=1>(m, v)
        p, q = Split<axis=1>(j)
        k = Mul(p, q)
        n = ReduceMean<axes=[2,3]>(k)
        f = Flatten(n)
        y = Gemm(f, w3, b3)
    }"""
    weights = {
        "w1": random(4, 4, 3, 3) * factor,
        "b1": random(4),
        "w2": random(4, 4, 1, 1) / 50,
        "b2": 30 * random(4),
        "w3": random(4, 6),
        "b3": random(6) / 100,
    }
    result = quantized(graph(text, **weights), XINT8, x=random(1, 4, 14, 14))
    assert check_model(result.to_bytes(), "npu-int8") == ()
    assert np.isfinite(run(result.to_bytes(), x=random(1, 4, 14, 14))).all()


def test_evaluation_compares_with_the_model_before_conversions() -> None:
    proto = graph("g (float[1,64] x) => (float[1,64] y) { c = MatMul(x, w) y = Sigmoid(c) }", w=np.eye(64))
    x = 3 * random(1, 64)
    kept = replace(XINT8, prepare=replace(XINT8.prepare, npu=NpuConversions(sigmoid_to_hard_sigmoid=False)))
    hard = quantized(proto, XINT8, x=x).evaluation.metrics["l2"].value
    soft = quantized(proto, kept, x=x).evaluation.metrics["l2"].value
    # The converted model is up to 0.07 off; quantization alone about 0.004.
    assert soft < 0.3 * hard


SMALL = random(4, 4, 1, 1) / 50


@pytest.mark.parametrize("bias", [0.0, 1e-30, 1e-8])
@pytest.mark.parametrize("size", [1.0, 0.1, 0.01, 1e-4])
def test_a_bias_without_values_takes_no_bits_from_the_weight(bias: float, size: float) -> None:
    proto = graph(TINY_TEXT, w=SMALL, b=np.full(4, bias))
    result = quantized(proto, XINT8, x=random(1, 4, 6, 6) * size)
    assert not any("do not hold" in str(note) for note in result.notes)
    assert result.evaluation.metrics["sqnr"].value > 30
    assert check_model(result.to_bytes(), "npu-int8") == ()


def test_layers_that_share_a_bias_of_zeros_keep_their_weights() -> None:
    text = "g (float[1,4,6,6] x) => (float[1,4,6,6] y) { h = Conv(x, w, b) y = Conv(h, v, b) }"
    result = quantized(graph(text, w=SMALL, v=SMALL / 50, b=np.zeros(4)), XINT8, x=random(1, 4, 6, 6) / 10)
    assert result.evaluation.metrics["sqnr"].value > 25
    assert check_model(result.to_bytes(), "npu-int8") == ()


def test_a_weight_of_zeros_takes_no_bits_from_bias_and_result() -> None:
    proto = graph(TINY_TEXT, w=np.zeros((4, 4, 1, 1)), b=np.array([0.01, -0.02, 0.015, 0.003]))
    result = quantized(proto, XINT8, x=random(1, 4, 6, 6))
    assert result.evaluation.metrics["sqnr"].value > 30
    assert check_model(result.to_bytes(), "npu-int8") == ()


def test_the_bias_of_a_channel_that_relu_cuts_off_takes_no_bits_from_the_weight() -> None:
    text = "g (float[1,4,6,6] x) => (float[1,4,6,6] y) { h = Conv(x, w, b) y = Relu(h) }"
    proto = graph(text, w=SMALL, b=np.array([-90.0, 0.001, 0.002, 0.003]))
    result = quantized(proto, XINT8, x=random(1, 4, 6, 6) / 10)
    assert result.evaluation.metrics["sqnr"].value > 20
    assert check_model(result.to_bytes(), "npu-int8") == ()


def test_shared_fraction_bits_are_weighed_by_what_they_cost() -> None:
    # One pixel in a thousand is large, so the means of all pixels are small.
    x = random(1, 4, 32, 32) ** 2
    x[:, :, 3, 5] = 60.0
    text = "g (float[1,4,32,32] x) => (float[1,3,1,1] y) { p = GlobalAveragePool(x) y = Conv(p, w) }"
    proto = graph(text, w=random(3, 4, 1, 1))
    weighed = replace(XINT8, scale=replace(XINT8.scale, weigh_shared=True))
    plain, better = (quantized(proto, recipe, x=x) for recipe in (XINT8, weighed))
    assert position(better, "x") == position(better, "p")
    assert (position(better, "p") or 0) > (position(plain, "p") or 0)
    assert check_model(better.to_bytes(), "npu-int8") == ()
