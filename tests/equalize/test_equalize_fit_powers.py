"""Factors of whole tensors: the function stays, and power-of-two scales lose less."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text, run

import quantry
from quantry.recipe import PRESETS, EvaluateOptions, FitPowers, NpuConversions, TuneOptions

XINT8 = PRESETS["XINT8"].recipe
PLAIN = replace(
    XINT8,
    prepare=replace(XINT8.prepare, npu=NpuConversions(sigmoid_to_hard_sigmoid=False)),
    equalize=replace(XINT8.equalize, cross_layer=None),
    evaluate=EvaluateOptions(guard=0, metrics=("sqnr",)),
    tune=TuneOptions(),
)
FITTED = replace(PLAIN, equalize=replace(PLAIN.equalize, powers=FitPowers()))

BODIES = {
    "Relu": "c = Relu(a) d = Conv(c, v, q)",
    "Clip with a shared bound": "c = Clip(a, zero, six) e = Conv(c, v, q) d = Clip(e, zero, six)",
    "residual sum": "c = Relu(a) e = Conv(c, v, q) d = Add(c, e)",
    "Concat and pools": "c = Relu(a) e = Conv(c, v, q) f = MaxPool <kernel_shape=[2,2]> (e) "
    "g = AveragePool <kernel_shape=[2,2]> (c) h = Concat <axis = 1> (f, g) d = Conv(h, t)",
    "channel shuffle": "c = Relu(a) e = Reshape(c, halves) f = Transpose <perm=[0,2,1,3,4]> (e) d = Reshape(f, whole)",
    "sum with a constant": "c = Relu(a) e = Add(c, k) d = Conv(e, v, q)",
    "function in between": "s = Sigmoid(a) c = Mul(a, s) d = Conv(c, v, q)",
    "gate with a constant": "m = Mul(a, k) s = Sigmoid(m) c = Mul(a, s) d = Conv(c, v, q)",
    "gate whose constant another node reads": "m = Mul(a, k) s = Sigmoid(m) c = Mul(s, a) e = Add(c, k) d = Conv(e, v)",
    "product that is also summed": "m = Mul(a, k) s = Sigmoid(m) c = Mul(a, s) e = Add(m, c) d = Conv(e, v, q)",
    "product that a function and a layer read": "m = Mul(a, k) s = Sigmoid(m) c = Conv(m, v, q) d = Mul(c, s)",
    "gate of another tensor": "c = Relu(a) e = Conv(c, v, q) s = Sigmoid(e) d = Mul(c, s)",
    "square": "c = Relu(a) e = Mul(c, c) d = Conv(e, v, q)",
}


def network(body: str) -> onnx.ModelProto:
    random = np.random.default_rng(2)

    def weight(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float y)
        <float zero = {{0}}, float six = {{6}}, int64[5] halves = {{1,2,4,8,8}}, int64[4] whole = {{1,8,8,8}}>
        {{ a = Conv <pads = [1,1,1,1]> (x, w, p) {body} y = Conv(d, u, r) }}"""
    constants = {"w": weight(8, 3, 3, 3), "p": weight(8), "v": weight(8, 8, 1, 1), "q": weight(8), "r": weight(4)}
    constants |= {"t": weight(8, 16, 1, 1), "k": weight(1, 8, 1, 1), "u": weight(4, 8, 1, 1)}
    return from_text(text, **{name: array for name, array in constants.items() if f" {name}" in text})


def samples(seed: int, count: int = 6) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_function_stays(body: str) -> None:
    proto, data = network(body), samples(1)
    result = quantry.quantize(proto, data, FITTED, store=None)
    changed = result.stages.equalized.value.model
    for sample in samples(3, 2):
        expected, got = run(proto, sample)["y"], run(changed, sample)["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert any("power-of-two fit" in str(note) for note in result.notes)


def chain(excess: float, *, gated: bool = False) -> onnx.ModelProto:
    """Return layers whose inputs and weights end slightly above a power of two, where half of a range is unused.

    Args:
        excess: By how much they do.
        gated: Whether gates, whose functions read a product with constants, follow the layers instead of Relu.
    """
    random = np.random.default_rng(5)
    names = {}
    body, source = "", "x"
    for number in range(6):
        weight = random.uniform(-1, 1, (16, 16, 1, 1)).astype(np.float32) * excess
        names[f"w{number}"] = weight
        body += f"a{number} = Conv({source}, w{number}) "
        if gated:
            names[f"k{number}"] = np.full((1, 16, 1, 1), 0.5, np.float32)
            body += f"m{number} = Mul(a{number}, k{number}) s{number} = Sigmoid(m{number}) "
            body += f"r{number} = Mul(a{number}, s{number}) "
        else:
            body += f"r{number} = Relu(a{number}) "
        source = f"r{number}"
    names["u"] = random.uniform(-1, 1, (4, 16, 1, 1)).astype(np.float32)
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,16,8,8] x) => (float y)
        {{ {body} y = Conv({source}, u) }}"""
    return from_text(text, **names)


@pytest.mark.parametrize(("gated", "least", "mean"), [(False, 0.0, 1.0), (True, -0.2, 0.5)])
def test_power_of_two_scales_lose_less(gated: bool, least: float, mean: float) -> None:
    random = np.random.default_rng(7)
    data = [{"x": random.uniform(-1, 1, (1, 16, 8, 8)).astype(np.float32)} for _ in range(12)]
    gains = []
    for excess in (1.02, 1.1, 1.3):
        plain, fitted = (
            quantry.quantize(chain(excess, gated=gated), data[:6], recipe, evaluation_data=data[6:], store=None)
            for recipe in (PLAIN, FITTED)
        )
        gains.append(fitted.evaluation.metrics["sqnr"].value - plain.evaluation.metrics["sqnr"].value)
    assert min(gains) > least
    assert np.mean(gains) > mean


def test_other_scales_are_left_alone() -> None:
    recipe = replace(PRESETS["CPU_INT8"].recipe, equalize=FITTED.equalize)
    result = quantry.quantize(network(BODIES["Relu"]), samples(1), recipe, store=None)
    assert any("not all scales are powers of two" in str(note) for note in result.notes)


def test_bias_of_8_bits_is_compensated_by_the_weights() -> None:
    """One large bias makes the steps of the others coarse; GPTQ's weights take up what rounding them loses."""
    random = np.random.default_rng(3)
    weight = random.uniform(-1, 1, (8, 16, 1, 1)).astype(np.float32)
    bias = np.array([60.0, 0.2, 0.3, -0.2, 0.1, -0.3, 0.24, 0.17], np.float32)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,16,6,6] x) => (float y) { y = Conv(x, w, b) }"""
    proto = from_text(text, w=weight, b=bias)
    data = [{"x": random.uniform(0, 1, (1, 16, 6, 6)).astype(np.float32)} for _ in range(16)]
    recipe = replace(PRESETS["RECOMMENDED-NPU"].recipe, evaluate=EvaluateOptions(guard=0))
    result = quantry.quantize(proto, data[:12], recipe, store=None)
    means = []
    for sample in data[12:]:
        expected, got = run(proto, sample)["y"], run(result.model, sample)["y"]
        means.append((got - expected).mean(axis=(0, 2, 3)))
    # Half a step of the bias is 0.25; the mean errors of all other channels are far below.
    assert np.abs(np.mean(means, axis=0)[1:]).max() < 0.12
