"""High-bias absorption: the same outputs on the calibration data, smaller tensors, and never through zero padding."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings

import quantry
from quantry.data.open_data import calibration_data
from quantry.equalize import absorb, absorb_needs
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.observe import Statistics, observe
from quantry.prepare import prepare
from quantry.recipe import BiasAbsorption, EqualizeOptions, ObserveOptions, PrepareOptions, Recipe

IMAGE, ROWS = "float[2,3,6,6] x", "float[2,5,6] x"
FIRST = "a = Conv(x, w8_3_1_1, b8) r = Relu(a) "
LAWFUL = {
    "pointwise": (IMAGE, FIRST + "y = Conv(r, w4_8_1_1, b4)"),
    "no second bias": (IMAGE, FIRST + "y = Conv(r, w4_8_3_3)"),
    "clip": (IMAGE, "a = Conv(x, w8_3_1_1, b8) r = Clip(a, zero) y = Conv(r, w4_8_1_1)"),
    "depthwise": (IMAGE, FIRST + "y = Conv <group = 8> (r, w8_1_3_3, c8)"),
    "chain": (IMAGE, FIRST + "c = Conv(r, v8_8_1_1) s = Relu(c) y = Conv(s, w4_8_1_1)"),
    "two readers": (IMAGE, FIRST + "p = Conv(r, w4_8_1_1) q = Conv(r, v4_8_1_1, b4) y = Add(p, q)"),
    "pooled": (IMAGE, FIRST + "p = GlobalAveragePool(r) f = Flatten(p) y = Gemm <transB = 1> (f, w4_8, b4)"),
    "padded mean": (
        IMAGE,
        FIRST + "p = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (r) y = Conv(p, w4_8_1_1)",
    ),
    "flattened": (IMAGE, FIRST + "f = Flatten(r) y = Gemm(f, w288_4)"),
    "matrix": (ROWS, "m = MatMul(x, w6_8) a = Add(m, b8) r = Relu(a) n = MatMul(r, w8_4) y = Add(n, b4)"),
}
UNLAWFUL = {
    "zeros around": (FIRST + "y = Conv <pads = [1,1,1,1]> (r, w4_8_3_3)", "Conv pads its input with zeros"),
    "same size": (FIRST + 'y = Conv <auto_pad = "SAME_UPPER"> (r, w4_8_3_3)', "Conv pads its input with zeros"),
    "counted zeros": (
        FIRST
        + "p = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1], count_include_pad = 1> (r) y = Conv(p, w4_8_1_1)",
        "AveragePool counts the zeros",
    ),
    "sum": (FIRST + "s = Add(r, r) y = Conv(s, w4_8_1_1)", "Add does not pass constants on"),
    "spread": (FIRST + "y = ConvTranspose(r, w8_4_3_3)", "spreads a constant unevenly"),
    "beta": (FIRST + "f = Flatten(r) y = Gemm <beta = 0.5> (f, w288_4, b4)", "alpha or beta"),
    "no function": ("a = Conv(x, w8_3_1_1, b8) y = Conv(a, w4_8_1_1)", "its result is not read by a single Relu"),
    "output": ("a = Conv(x, w8_3_1_1, b8) y = Relu(a)", "an output of the model"),
}


def network(declared: str, body: str, seed: int = 0) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({declared}) => (float y) {{ {body} }}')
    random = np.random.default_rng(seed)
    names = {name for node in proto.graph.node for name in node.input if name[0] in "wvbc" and name[1:2].isdigit()}
    arrays = {name: random.standard_normal(tuple(map(int, name[1:].split("_")))) for name in sorted(names)}
    if "b8" in arrays:
        # Channels that never come down to zero, and others that do.
        arrays["b8"] = random.choice([0.0, 20.0, 50.0], 8)
        arrays["b8"][0] = 50.0
    arrays["zero"] = np.zeros(())
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    return proto


def samples(declared: str, seed: int = 1) -> list[dict[str, np.ndarray]]:
    shape = (2, 3, 6, 6) if declared == IMAGE else (2, 5, 6)
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(3)]


def observed(model: FloatModel, declared: str) -> Statistics:
    data = calibration_data(samples(declared), model.inputs)
    return observe(model, data, ObserveOptions(), absorb_needs(model, BiasAbsorption()))


def absorbed(declared: str, body: str, options: BiasAbsorption, seed: int = 0) -> tuple[FloatModel, FloatModel]:
    model = prepare(model_source(network(declared, body, seed)), PrepareOptions())
    return model, absorb(model, observed(model, declared), options)


def outputs(model: FloatModel, declared: str) -> np.ndarray:
    content = onnx.ModelProto.FromString(model.to_blob().files["model.onnx"]).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, sample)[0] for sample in samples(declared)])


@given(st.sampled_from(sorted(LAWFUL)), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 1.0]))
@settings(max_examples=40, deadline=None)
def test_function_stays_on_the_data(case: str, seed: int, margin: float) -> None:
    declared, body = LAWFUL[case]
    before, after = absorbed(declared, body, BiasAbsorption(margin, gain=1.0), seed)
    assert any(note.startswith("high-bias absorption moved constants of") for note in after.notes)
    reference = outputs(before, declared)
    np.testing.assert_allclose(outputs(after, declared), reference, rtol=1e-4, atol=1e-5 * np.abs(reference).max())


@pytest.mark.parametrize("case", LAWFUL)
def test_largest_value_falls_to_what_varies(case: str) -> None:
    declared, body = LAWFUL[case]
    before, after = absorbed(declared, body, BiasAbsorption(0.0, gain=1.0))
    assert after.model is not before.model
    peaks = [observed(model, declared).tensors["r"].maximum for model in (before, after)]
    assert peaks[1] < peaks[0] / 2
    np.testing.assert_allclose(outputs(after, declared), outputs(before, declared), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("case", UNLAWFUL)
def test_layer_that_cannot_change_is_declined_with_its_reason(case: str) -> None:
    body, reason = UNLAWFUL[case]
    before, after = absorbed(IMAGE, body, BiasAbsorption())
    assert after.model is before.model
    assert any(reason in note for note in after.notes), after.notes


def test_channels_that_come_down_to_zero_are_left_alone() -> None:
    model = prepare(model_source(network(IMAGE, LAWFUL["pointwise"][1].replace("b8", "c8"))), PrepareOptions())
    after = absorb(model, observed(model, IMAGE), BiasAbsorption())
    assert after.model is model.model
    assert any("reaches zero" in note for note in after.notes)


def test_unless_the_largest_value_falls_nothing_is_done() -> None:
    _, after = absorbed(IMAGE, LAWFUL["pointwise"][1], BiasAbsorption(gain=100.0))
    assert any("would not shrink enough" in note for note in after.notes)


def test_recipe_with_absorption_quantizes_better() -> None:
    declared, body = LAWFUL["no second bias"]
    proto, data = network(declared, body), samples(declared)
    plain = quantry.quantize(proto, data, Recipe(), store=None)
    recipe = replace(Recipe(), equalize=EqualizeOptions(absorb=BiasAbsorption()))
    result = quantry.quantize(proto, data, recipe, store=None)
    assert result.trace.computed("absorb") == 1
    assert result.evaluation.metrics["sqnr"].value > plain.evaluation.metrics["sqnr"].value + 3
