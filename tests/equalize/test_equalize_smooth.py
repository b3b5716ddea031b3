"""SmoothQuant: the same function, fewer outliers, and factors only where they pay."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings

import quantry
from quantry.data.open_data import calibration_data
from quantry.equalize import WeightActivationTypes, smooth, smooth_needs
from quantry.equalize.smooth_factors import (
    ChannelRanges,
    ReadingLayer,
    Rounding,
    best_factors,
    estimated_error,
    powers_of_two,
    smooth_factors,
)
from quantry.errors import RecipeError
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.observe import observe
from quantry.prepare import prepare
from quantry.recipe import (
    DataType,
    EqualizeOptions,
    MinMax,
    ObserveOptions,
    PerChannel,
    PlanOptions,
    PrepareOptions,
    Recipe,
    ScaleOptions,
    SmoothQuant,
    TensorSpec,
)

IMAGE, ROWS = "float[2,3,6,6] x", "float[2,5,6] x"
TWO = "a = Conv(x, w8_3_1_1) c = Conv(x, v8_3_1_1) "
INSERTED = ("input", "function", "twice")
BODIES = {
    "relu": (IMAGE, "a = Conv(x, w8_3_3_3, b8) r = Relu(a) y = Conv(r, w4_8_1_1)", 0),
    "silu": (IMAGE, "a = Conv(x, w8_3_3_3, b8) s = Sigmoid(a) m = Mul(a, s) y = Conv <group = 8> (m, w8_1_3_3)", 1),
    "gate": (IMAGE, TWO + "s = Sigmoid(a) m = Mul(c, s) y = Conv(m, w4_8_1_1)", 0),
    "join": (IMAGE, TWO + "m = Concat <axis = 1> (a, c) y = Conv(m, w4_16_1_1)", 0),
    "branch": (IMAGE, TWO + "m = Add(a, c) r = Relu(a) d = Conv(r, w8_8_1_1) y = Add(m, d)", 1),
    "twice": (IMAGE, TWO + "m = Concat <axis = 1> (a, a) n = Conv(m, w8_16_1_1) y = Add(n, c)", 1),
    "pool": (IMAGE, "a = Conv(x, w8_3_1_1) m = MaxPool <kernel_shape = [2, 2]> (a) y = Conv(m, w4_8_1_1)", 0),
    "normalized": (ROWS, "n = LayerNormalization(x, s6, b6) p = MatMul(n, w6_4) q = MatMul(n, v6_4) y = Add(p, q)", 0),
    "decomposed": (ROWS, "n = Softmax(x) g = Mul(n, s6) h = Add(g, b6) y = MatMul(h, w6_4)", 0),
    "matrix": (ROWS, "m = MatMul(x, w6_8) a = Add(m, b8) r = Relu(a) y = MatMul(r, w8_4)", 0),
    "residual": (ROWS, "n = LayerNormalization(x, s6, b6) k = Shape(n) m = MatMul(n, w6_6) y = Add(m, n)", 1),
    "shape": (IMAGE, "a = Conv(x, w8_3_1_1) k = Shape(a) r = Relu(a) z = Reshape(r, k) y = Conv(r, w4_8_1_1)", 0),
    "input": (ROWS, "y = MatMul(x, w6_4)", 1),
    "function": (ROWS, "t = Tanh(x) y = MatMul(t, w6_4)", 1),
}


def network(case: str, seed: int = 0) -> onnx.ModelProto:
    declared, body, _ = BODIES[case]
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({declared}) => (float y) {{ {body} }}')
    random = np.random.default_rng(seed)
    names = {name for node in proto.graph.node for name in node.input if name[0] in "wvbs" and len(name) > 1}
    for name in sorted(names):
        shape = tuple(map(int, name[1:].split("_")))
        spread = 10 ** random.uniform(-1, 1, (shape[0], *[1] * (len(shape) - 1)))
        array = (random.standard_normal(shape) * spread).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def samples(case: str, seed: int = 1) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    shape = (2, 3, 6, 6) if BODIES[case][0] == IMAGE else (2, 5, 6)
    wide = 10 ** random.uniform(-1, 1, shape[-1])
    return [{"x": (random.standard_normal(shape) * wide).astype(np.float32)} for _ in range(3)]


def smoothed(case: str, options: SmoothQuant, seed: int = 0) -> tuple[FloatModel, FloatModel]:
    model = prepare(model_source(network(case, seed)), PrepareOptions())
    data = calibration_data(samples(case), model.inputs)
    statistics = observe(model, data, ObserveOptions(), smooth_needs(model, options))
    activation = TensorSpec(DataType.UINT8, symmetric=False)
    return model, smooth(model, statistics, options, WeightActivationTypes(activation, TensorSpec()))


def outputs(model: FloatModel, case: str) -> np.ndarray:
    content = onnx.ModelProto.FromString(model.to_blob().files["model.onnx"]).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, sample)[0] for sample in samples(case)])


@pytest.mark.parametrize("case", BODIES)
def test_function_stays_and_multiplications_are_few(case: str) -> None:
    operators = ("MatMul",) if case == "function" else SmoothQuant().operators
    before, after = smoothed(case, SmoothQuant(alpha=0.7, insert=case in INSERTED, operators=operators))
    np.testing.assert_allclose(outputs(after, case), outputs(before, case), rtol=1e-4, atol=1e-4)
    inserted = len(list(after.model.graph)) - len(list(before.model.graph))
    assert inserted == BODIES[case][2] + (case == "twice")
    changed = [
        name
        for name, value in before.model.graph.initializers.items()
        if not np.array_equal(value.const_value.numpy(), after.model.graph.initializers[name].const_value.numpy())
    ]
    assert changed


@given(st.sampled_from(sorted(BODIES)), st.integers(0, 1000), st.sampled_from([None, 0.0, 0.5, 1.0]))
@settings(max_examples=15, deadline=None)
def test_function_stays_for_any_weights_and_alpha(case: str, seed: int, alpha: float | None) -> None:
    before, after = smoothed(case, SmoothQuant(alpha=alpha, insert=True, tolerance=0.0), seed)
    reference = outputs(before, case)
    np.testing.assert_allclose(outputs(after, case), reference, rtol=1e-3, atol=1e-5 * np.abs(reference).max())


@pytest.mark.parametrize("case", BODIES)
def test_further_sweeps_keep_the_function_and_insert_nothing_more(case: str) -> None:
    options = SmoothQuant(gain=1.0, tolerance=0.0)
    before, once = smoothed(case, options)
    _, thrice = smoothed(case, replace(options, sweeps=3))
    reference = outputs(before, case)
    np.testing.assert_allclose(outputs(thrice, case), reference, rtol=1e-3, atol=1e-5 * np.abs(reference).max())
    counted = [[node.op_type for node in model.model.graph].count("Mul") for model in (once, thrice)]
    assert counted[1] <= counted[0] + (case == "twice")


def test_nothing_is_inserted_unless_allowed() -> None:
    before, after = smoothed("input", SmoothQuant(alpha=0.5))
    assert [node.op_type for node in after.model.graph] == [node.op_type for node in before.model.graph]
    assert any("it reads an input of the model" in str(note) for note in after.notes)


def test_layers_of_other_operators_are_left_alone() -> None:
    before, after = smoothed("matrix", SmoothQuant(alpha=0.5, operators=("Conv",)))
    assert any("0 of 0 tensors" in str(note) for note in after.notes)
    np.testing.assert_array_equal(outputs(after, "matrix"), outputs(before, "matrix"))


def test_fixed_alpha_is_the_formula_of_the_paper() -> None:
    ranges = ChannelRanges.of(np.array([-4.0, -1.0]), np.array([1.0, 9.0]), 1.0)
    layer = ReadingLayer.of(np.array([[[[0.5], [2.0]], [[-1.0], [0.1]]]]))
    factors = smooth_factors(ranges, [layer], 0.5)
    expected = np.array([4.0, 9.0]) ** 0.5 / np.array([1.0, 2.0]) ** 0.5
    np.testing.assert_allclose(factors / factors[0], expected / expected[0])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_estimate_follows_the_real_error(symmetric: bool, per_channel: bool) -> None:
    random = np.random.default_rng(3)
    spread = 10 ** random.uniform(-1, 1, 16)
    values = random.uniform(-0.1, 1, (4000, 16)) * spread
    weight = random.standard_normal((12, 16))
    ranges = ChannelRanges.of(values.min(0), values.max(0), float((values**2).mean()))
    layer = ReadingLayer.of(weight[None, :, :, None])
    activation, rounding = Rounding(8, symmetric), Rounding(8, symmetric=True, per_channel=per_channel)

    def real(factors: np.ndarray) -> float:
        x, w = values / factors, weight * factors
        low, high = (-np.abs(x).max(), np.abs(x).max()) if symmetric else (min(x.min(), 0), x.max())
        step = (high - low) / activation.steps
        steps = np.abs(w).max(1, keepdims=True) if per_channel else np.abs(w).max()
        rounded = np.rint(w / (steps / 127)) * (steps / 127)
        return float(((np.rint(x / step) * step @ rounded.T - values @ weight.T) ** 2).mean())

    best, before, after = best_factors(ranges, [layer], activation, rounding)
    assert before == estimated_error(ranges, [layer], np.ones(16), activation, rounding)
    assert after < before
    assert real(best) < real(np.ones(16))
    assert real(best) / real(np.ones(16)) == pytest.approx(after / before, rel=0.7)


def test_inserted_factors_are_exact_in_eight_bits() -> None:
    factors = powers_of_two(np.array([0.001, 0.3, 1.0, 70.0]), 6)
    np.testing.assert_array_equal(factors, [1.0, 1.0, 1.0, 64.0])
    assert factors.max() / factors.min() <= 64


def test_outliers_behind_a_silu_are_smoothed_in_the_pipeline() -> None:
    random = np.random.default_rng(0)
    proto = network("silu")
    spread = np.repeat([0.05, 1.0, 40.0, 0.3], 2).astype(np.float32)
    for tensor, factor in (("w8_3_3_3", spread), ("w8_1_3_3", 1 / spread)):
        place = next(item for item in proto.graph.initializer if item.name == tensor)
        shape = onnx.numpy_helper.to_array(place).shape
        array = random.standard_normal(shape).astype(np.float32) * factor.reshape(-1, 1, 1, 1)
        place.CopyFrom(onnx.numpy_helper.from_array(array, tensor))
    scores, operators = [], []
    for options in (None, SmoothQuant()):
        recipe = Recipe(
            equalize=EqualizeOptions(smooth=options),
            plan=PlanOptions(TensorSpec(DataType.UINT8, symmetric=False), TensorSpec(granularity=PerChannel())),
            scale=ScaleOptions(MinMax(), MinMax()),
        )
        data = [{"x": random.standard_normal((2, 3, 6, 6)).astype(np.float32)} for _ in range(8)]
        result = quantry.quantize(proto, data, recipe, store=None)
        scores.append(result.evaluation.metrics["sqnr"].value)
        operators.append([node.op_type for node in result.model.graph].count("Mul"))
    assert operators == [1, 2]
    assert scores[1] > scores[0] + 10


def test_types_with_many_scales_need_no_smoothing() -> None:
    model = prepare(model_source(network("relu")), PrepareOptions())
    statistics = observe(model, calibration_data(samples("relu"), model.inputs), ObserveOptions())
    half = TensorSpec(DataType.FLOAT16)
    after = smooth(model, statistics, SmoothQuant(), WeightActivationTypes(half, half))
    assert after.model is model.model


@pytest.mark.parametrize(
    "options", [{"alpha": 1.5}, {"gain": 0.5}, {"tolerance": -1.0}, {"sweeps": 0}, {"operators": ("Convv",)}]
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match="SmoothQuant"):
        SmoothQuant(**options)  # type: ignore[arg-type]
