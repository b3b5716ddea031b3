"""Joint equalization: the function stays, the estimate is convex and exact in its slope, and rounding loses less."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.onnx_oracle import from_text, run

import quantry
from quantry.equalize.channel_labels import ChannelLabels
from quantry.equalize.channels import reshaped
from quantry.equalize.geometric_program import SharedScale, SharedScales, WeightScale, log_sum, minimize_posynomial
from quantry.equalize.rounding_errors import ObservedChannels, observed_tensors
from quantry.equalize.types import WeightActivationTypes
from quantry.errors import RecipeError
from quantry.graph.edit import is_channel_product
from quantry.observe import Statistics
from quantry.observe.counting import CountingSpace, TensorCounter
from quantry.recipe import (
    PRESETS,
    CrossLayer,
    EqualizeOptions,
    EvaluateOptions,
    JointEqualization,
    SmoothQuant,
    TuneOptions,
)

PLAIN = {
    name: replace(
        PRESETS[name].recipe,
        prepare=replace(PRESETS[name].recipe.prepare, npu=None),
        equalize=EqualizeOptions(),
        evaluate=EvaluateOptions(guard=0, metrics=("sqnr",)),
        tune=TuneOptions(),
    )
    for name in ("XINT8", "CPU_INT8")
}
JOINT = {name: replace(recipe, equalize=EqualizeOptions(joint=JointEqualization())) for name, recipe in PLAIN.items()}

BODIES = {
    "Relu": "c = Relu(a) d = Conv(c, v, q)",
    "PRelu and LeakyRelu": "c = PRelu(a, slopes) e = Conv(c, v, q) d = LeakyRelu(e)",
    "depthwise": "c = Relu(a) e = Conv <group = 8, pads = [1,1,1,1]> (c, depth, q) d = Relu(e)",
    "grouped": "c = Relu(a) e = Conv <group = 2> (c, half, q) d = Relu(e)",
    "Clip with a shared bound": "c = Clip(a, zero, six) e = Conv(c, v, q) d = Clip(e, zero, six)",
    "residual sum": "c = Relu(a) e = Conv(c, v, q) d = Add(c, e)",
    "sum with a constant": "c = Relu(a) e = Add(c, k) d = Conv(e, v, q)",
    "sum with a number": "c = Relu(a) e = Add(six, c) d = Conv(e, v, q)",
    "constants that scale": "c = Mul(a, k) e = Div(c, six) d = Conv(e, v, q)",
    "Concat and pools": "c = Relu(a) e = Conv(c, v, q) f = MaxPool <kernel_shape=[2,2]> (e) "
    "g = AveragePool <kernel_shape=[2,2]> (c) h = Concat <axis = 1> (f, g) d = Conv(h, t)",
    "channel shuffle": "c = Relu(a) e = Reshape(c, halves) f = Transpose <perm=[0,2,1,3,4]> (e) d = Reshape(f, whole)",
    "halves": "c = Relu(a) e, f = Split <axis = 1> (c, fours) g = Concat <axis = 1> (f, e) d = Add(g, c)",
    "part by part": "c = Relu(a) e = Slice(c, one, seven, one, two) f = Gather <axis = 1> (c, odd) "
    "d = Concat <axis = 1> (e, f, e)",
    "squeeze and excitation": "c = Relu(a) m = GlobalAveragePool(c) n = Conv(m, v) s = Sigmoid(n) d = Mul(c, s)",
    "NHWC": "c = Transpose <perm = [0,2,3,1]> (a) e = Relu(c) f = Transpose <perm = [0,3,1,2]> (e) d = Conv(f, v, q)",
    "pad and resize": "c = Relu(a) e = Pad(c, pads) f = Resize(e, , scales) d = Conv(f, v, q)",
    "mean over positions": "c = Relu(a) e = ReduceMean <axes = [2,3], keepdims = 0> (c) f = Unsqueeze(e, last) "
    "d = Unsqueeze(f, lasts)",
    "function in between": "s = Sigmoid(a) d = Conv(s, v, q)",
    "SiLU": "s = Sigmoid(a) c = Mul(a, s) d = Conv(c, v, q)",
    "HardSwish": "s = HardSigmoid <alpha = 0.1667> (a) f = Mul(s, six) c = Mul(f, a) d = Conv(c, v, q)",
    "GELU": "m = Div(a, six) s = Erf(m) f = Add(s, one_number) g = Mul(a, f) c = Div(g, six) d = Conv(c, v, q)",
    "HardSwish in one node": "c = HardSwish(a) d = Conv(c, v, q)",
    "gates that meet": "s = Sigmoid(a) c = Mul(a, s) e = Conv(c, v, q) f = Sigmoid(e) g = Mul(e, f) d = Add(c, g)",
    "gate that is also read elsewhere": "s = Sigmoid(a) c = Mul(a, s) e = Conv(s, v, q) d = Add(c, e)",
    "gate of another tensor": "b = Relu(a) s = Sigmoid(b) e = Conv(b, v, q) d = Mul(e, s)",
    "maximum": "c = Relu(a) e = Conv(c, v, q) f = Max(c, e) d = Sub(f, c)",
    "constants of lower rank on other axes": "c = Add(a, row) e = Max(c, plane) d = Conv(e, v, q)",
    "interpolated channels": 'c = Relu(a) e = Squeeze(c, zeroth) f = Resize <mode = "linear"> (e, , twice) '
    "g = Unsqueeze(f, zeroth) d = Conv(g, t)",
    "bias that adds an axis": "c = GlobalAveragePool(a) e = Flatten(c) f = MatMul(e, square) g = Add(f, cube) "
    "h = Relu(g) i = MatMul(h, square2) d = Reshape(i, point)",
    "input read along two axes": "c = Relu(a) e = MatMul(x, square) f = Conv(e, w2) d = Add(c, f)",
    "outer sum": "c = GlobalAveragePool(a) e = Reshape(c, column) f = Reshape(c, rows) g = Add(e, f) "
    "d = Unsqueeze(g, pair)",
}


def weight(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Return a weight whose channels differ by a factor of 100."""
    values = random.standard_normal(shape)
    return (values * 10.0 ** random.uniform(-1, 1, (shape[0], *(1 for _ in shape[1:])))).astype(np.float32)


def network(body: str, seed: int = 2) -> onnx.ModelProto:
    random = np.random.default_rng(seed)
    constants = {"w": weight(random, 8, 3, 3, 3), "p": weight(random, 8), "v": weight(random, 8, 8, 1, 1)}
    constants |= {"q": weight(random, 8), "r": weight(random, 4), "t": weight(random, 8, 16, 1, 1)}
    constants |= {"k": weight(random, 1, 8, 1, 1), "u": weight(random, 4, 8, 1, 1), "slopes": weight(random, 8, 1, 1)}
    constants |= {"depth": weight(random, 8, 1, 3, 3), "half": weight(random, 8, 4, 1, 1)}
    constants |= {"row": weight(random, 8), "plane": weight(random, 8, 8), "cube": weight(random, 1, 1, 8)}
    constants |= {"square": weight(random, 8, 8), "square2": weight(random, 8, 8), "w2": weight(random, 8, 3, 1, 1)}
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float y)
        <float zero = {{0}}, float six = {{6}}, float one_number = {{1}},
         int64[5] halves = {{1,2,4,8,8}}, int64[4] whole = {{1,8,8,8}},
         int64[2] fours = {{4,4}}, int64[1] one = {{1}}, int64[1] seven = {{7}}, int64[1] two = {{2}},
         int64[2] odd = {{5,7}}, int64[8] pads = {{0,0,1,1,0,0,1,1}}, float[4] scales = {{1,1,2,2}},
         int64[1] last = {{2}}, int64[1] lasts = {{3}}, int64[1] zeroth = {{0}}, float[3] twice = {{2,1,1}},
         int64[2] column = {{8,1}}, int64[2] rows = {{1,8}}, int64[2] pair = {{2,3}}, int64[4] point = {{1,8,1,1}}>
        {{ a = Conv <pads = [1,1,1,1]> (x, w, p) {body} y = Conv(d, u, r) }}"""
    return from_text(text, **{name: array for name, array in constants.items() if f" {name}" in text})


def samples(seed: int, count: int = 6) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("preset", JOINT)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_function_stays(body: str, preset: str) -> None:
    proto, data = network(body), samples(1)
    result = quantry.quantize(proto, data, JOINT[preset], store=None)
    changed = result.stages.equalized.value.model
    # Clip computes the same on what was observed.
    for sample in data[:3]:
        expected, got = run(proto, sample)["y"], run(changed, sample)["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert any("joint equalization" in str(note) for note in result.notes)


@pytest.mark.parametrize(
    ("body", "least_gain"),
    # Pairs of layers are what cross-layer equalization is made for; it does not pass the others.
    [("Relu", -0.6), ("depthwise", -0.6), ("residual sum", 0.5), ("halves", 0.5), ("Concat and pools", 5.0)],
)
def test_uneven_channels_lose_less_than_with_cross_layer_equalization(body: str, least_gain: float) -> None:
    pairs = replace(PLAIN["XINT8"], equalize=EqualizeOptions(CrossLayer()))
    recipes = PLAIN["XINT8"], pairs, JOINT["XINT8"]
    # One power of two more or less decides about a single small net, so the mean of several counts.
    found = np.array([[_sqnr(network(BODIES[body], seed), recipe) for recipe in recipes] for seed in range(6)])
    plain, cross_layer, joint = found.mean(axis=0)
    assert joint > plain + 0.5
    assert joint > cross_layer + least_gain


def _sqnr(proto: onnx.ModelProto, recipe: quantry.Recipe) -> float:
    result = quantry.quantize(proto, samples(1), recipe, evaluation_data=samples(5), store=None)
    return float(result.evaluation.metrics["sqnr"].value)


def test_a_clip_does_not_cut_off_channels_that_have_no_factor() -> None:
    # Those of the input reach 70 % of the bound. Those of the Conv reach it and want to be smaller.
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float y)
        <float zero = {0}, float six = {6}>
        { a = Conv(x, w, p) c = Concat <axis = 1> (x, a) e = Clip(c, zero, six) y = Conv(e, u) }"""
    random = np.random.default_rng(3)
    filters = {"w": 20 * weight(random, 8, 3, 1, 1), "p": weight(random, 8), "u": weight(random, 4, 11, 1, 1)}
    filters["u"][:, 3:] *= 1e-3
    proto = from_text(text, **filters)
    data = [{"x": np.clip(sample["x"] * 3, -4.2, 4.2)} for sample in samples(1)]
    changed = quantry.quantize(proto, data, JOINT["XINT8"], store=None).stages.equalized.value.model
    for sample in data:
        expected, got = run(proto, sample)["y"], run(changed, sample)["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_weights_near_the_end_of_float32_stay() -> None:
    proto = network(BODIES["Relu"])
    filters = next(one for one in proto.graph.initializer if one.name == "v")
    filters.CopyFrom(onnx.numpy_helper.from_array(np.full((8, 8, 1, 1), 1e36, np.float32), "v"))
    data = samples(1)
    result = quantry.quantize(proto, data, JOINT["XINT8"], store=None)
    assert any("values would leave the range of float32" in str(note) for note in result.notes)
    np.testing.assert_array_equal(
        run(result.stages.equalized.value.model, data[0])["y"], run(result.stages.prepared.value.model, data[0])["y"]
    )


def test_no_factor_passes_a_sigmoid() -> None:
    result = quantry.quantize(network(BODIES["function in between"]), samples(1), JOINT["XINT8"], store=None)
    assert any("Sigmoid is not positively homogeneous" in str(note) for note in result.notes)


def _products(body: str, options: JointEqualization) -> int:
    """Return the number of multiplications that are inserted."""
    recipe = replace(PLAIN["XINT8"], equalize=EqualizeOptions(joint=options))
    result = quantry.quantize(network(BODIES[body]), samples(1), recipe, store=None)
    return sum(is_channel_product(node) for node in result.stages.equalized.value.model.graph)


@pytest.mark.parametrize(
    ("body", "gates"),
    [
        ("SiLU", 1),
        ("HardSwish", 1),
        ("HardSwish in one node", 1),
        ("GELU", 1),
        ("gates that meet", 2),
        ("gate that is also read elsewhere", 0),
        ("gate of another tensor", 0),
        ("squeeze and excitation", 0),
    ],
)
def test_a_factor_passes_a_gate_by_a_multiplication(body: str, gates: int) -> None:
    assert len(labels_of(body).gates) == gates
    assert _products(body, JointEqualization(gain=1.0)) == gates


def test_gates_lose_less_where_channels_are_uneven() -> None:
    found = np.array(
        [
            [_sqnr(network(BODIES["gates that meet"], seed), recipe) for recipe in (PLAIN["XINT8"], JOINT["XINT8"])]
            for seed in range(6)
        ]
    )
    plain, joint = found.mean(axis=0)
    assert joint > plain + 0.5


def test_a_multiplication_must_pay() -> None:
    assert _products("SiLU", JointEqualization(gain=1e9)) == 0
    with pytest.raises(RecipeError, match=r"JointEqualization.gain must be at least 1, got 0.5"):
        JointEqualization(gain=0.5)


def test_smoothquant_divides_only_what_joint_equalization_could_not() -> None:
    recipe = replace(PLAIN["CPU_INT8"], equalize=EqualizeOptions(smooth=SmoothQuant(), joint=JointEqualization()))
    both = quantry.quantize(network(BODIES["SiLU"]), samples(1), recipe, store=None)
    assert any(
        "no SmoothQuant in front of 2 layers: joint equalization chose their factors" in str(note)
        for note in map(str, both.notes)
    )
    alone = quantry.quantize(network(BODIES["SiLU"]), samples(1), JOINT["CPU_INT8"], store=None)
    assert both.to_bytes() != alone.to_bytes()  # the recipe is part of the model
    first, second = (run(result.stages.equalized.value.model, samples(1)[0])["y"] for result in (both, alone))
    np.testing.assert_array_equal(first, second)


def observed(strength: list[float], channels: tuple[float, ...]) -> np.ndarray:
    """Return the peaks of channels in samples of different strength, as equalization sees them."""
    counter = TensorCounter(CountingSpace(), channel_axis=1)
    for factor in strength:
        counter.add(np.float32(factor) * np.array([[channels, channels]], np.float32).transpose(0, 2, 1))
    statistics = Statistics({"t": counter.freeze().stats}, len(strength))
    found = ObservedChannels(statistics).of(ir.Value(name="t"), len(channels))
    assert found is not None
    return found.peak


@pytest.mark.parametrize(
    ("strength", "expected"),
    [([3.0], 3.0), ([1.0, 3.0, 2.0], 2.0), ([1.0, 1.0, 20.0], 2.0), ([5.0, 5.0], 5.0)],
    ids=["one sample", "second-strongest sample", "a tenth of the first", "equal"],
)
def test_a_peak_is_what_the_second_strongest_sample_reaches(strength: list[float], expected: float) -> None:
    np.testing.assert_allclose(observed(strength, (1.0, -4.0)), [expected, 4 * expected])


@pytest.mark.parametrize("fused", [("Relu", "LeakyRelu"), ("Relu",), ()], ids=["all", "Relu", "none"])
def test_a_tensor_counts_where_its_function_is_not_fused(fused: tuple[str, ...]) -> None:
    model = ir.from_proto(onnx.shape_inference.infer_shapes(network("c = Relu(a) e = Conv(c, v, q) d = LeakyRelu(e)")))
    types = WeightActivationTypes.of(replace(PLAIN["CPU_INT8"].plan, fused_activations=fused))
    counted = {value.name for value, _ in observed_tensors(ChannelLabels(model), types)}
    assert {"a", "e"} - counted == {name for name, function in (("a", "Relu"), ("e", "LeakyRelu")) if function in fused}


def test_types_that_are_not_integers_change_nothing() -> None:
    recipe = replace(PRESETS["FP16"].recipe, equalize=EqualizeOptions(joint=JointEqualization()))
    result = quantry.quantize(network(BODIES["Relu"]), samples(1), recipe, store=None)
    assert any("types that are not integers represent outliers well" in str(note) for note in result.notes)


def test_same_input_gives_the_same_bytes() -> None:
    made = [quantry.quantize(network(BODIES["halves"]), samples(1), JOINT["XINT8"], store=None) for _ in range(2)]
    assert made[0].stages.quantized.value.to_bytes() == made[1].stages.quantized.value.to_bytes()


def labels_of(body: str) -> ChannelLabels:
    prepared = quantry.quantize(network(BODIES[body]), samples(1), PLAIN["XINT8"], store=None).stages.prepared.value
    return ChannelLabels(prepared.model)


def test_channels_behind_a_shuffle_are_the_channels_in_front_of_it() -> None:
    labels = labels_of("channel shuffle")
    values = {value.name: value for value in labels.of}
    before, after = (labels.of[values[name]].reshape(-1) for name in ("a", "d"))
    np.testing.assert_array_equal(after, before.reshape(2, 4).T.reshape(-1))


def test_operands_of_a_sum_share_their_factors() -> None:
    labels = labels_of("residual sum")
    values, positions = {value.name: value for value in labels.of}, labels.positions()
    shared, added = (positions[labels.of[values[name]]] for name in ("a", "e"))
    np.testing.assert_array_equal(shared, added)
    assert len(np.unique(shared)) == 8
    assert not positions[labels.of[values["y"]]].any()


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SHAPES, st.data())
@settings(max_examples=200, deadline=None)
def test_reshaped_labels_are_those_of_a_real_reshape(before: list[int], data: st.DataObject) -> None:
    spread = [length if data.draw(st.booleans()) else 1 for length in before]
    labels = np.arange(int(np.prod(spread))).reshape(spread)
    flat = int(np.prod(before))
    divisors = [number for number in range(1, flat + 1) if flat % number == 0]
    first = data.draw(st.sampled_from(divisors))
    after = data.draw(st.sampled_from([[flat], [first, flat // first], [1, first, 1, flat // first]]))
    found = reshaped(labels, before, after)
    assert found is not None
    expected = np.broadcast_to(labels, before).reshape(after)
    np.testing.assert_array_equal(np.broadcast_to(found, after), expected)


@pytest.mark.parametrize(
    ("before", "after", "is_known"),
    [
        ([None, 8, 2, 2], [None, 32], True),
        ([None, 8, 2], [None, 2, 4, 2], True),
        ([None, 8], [16], False),
        (["N", 8, "L"], ["N", 2, 4, "L"], True),
        (["N", 8, "L"], ["N", 8, None], True),
        # 2 x 8 x 6 may have become 3 x 8 x 4.
        ([None, 8, None], [None, 8, None], False),
        (["N", 8, "L"], ["M", 8, "K"], False),
    ],
)
def test_a_batch_of_unknown_size_stays_apart(before: list, after: list, *, is_known: bool) -> None:
    labels = np.arange(8).reshape([1, 8, *(1 for _ in before[2:])])
    assert (reshaped(labels, before, after) is not None) == is_known


def _terms(random: np.random.Generator, *, per_channel: bool) -> list:
    peaks = random.uniform(0.1, 1.0, (2, 3, 4)) ** 8
    energy, importance = random.uniform(0.1, 2, (2, 4)), random.uniform(0.1, 2, (2, 3))
    places = random.integers(0, 6, 14)
    layer = WeightScale(
        peaks, energy, importance, places[:6].reshape(2, 3), places[6:].reshape(2, 4), 0.3, per_channel=per_channel
    )
    inverse = SharedScale(np.ones(5), random.uniform(0.1, 2, 5), random.integers(0, 6, 5), 0.1, inverse=True)
    shared = SharedScale(random.uniform(0.1, 3, 5), random.uniform(0.1, 2, 5), random.integers(0, 6, 5), -0.2)
    return [layer, SharedScales([shared, inverse])]


@pytest.mark.parametrize("power", [1.0, 0.25])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_slope_is_that_of_the_value(per_channel: bool, power: float) -> None:
    random = np.random.default_rng(3)
    terms = _terms(random, per_channel=per_channel)
    u = np.concatenate([[0.0], random.normal(0, 0.3, 5)])
    slope = log_sum(terms, u, power)[1]
    for place in range(1, 6):
        step = np.zeros(6)
        step[place] = 1e-5
        measured = (log_sum(terms, u + step, power)[0] - log_sum(terms, u - step, power)[0]) / 2e-5
        assert slope[place] == pytest.approx(measured, abs=1e-6)


@pytest.mark.parametrize("per_channel", [False, True])
def test_there_is_one_optimum_wherever_the_search_begins(per_channel: bool) -> None:
    random = np.random.default_rng(4)
    terms = _terms(random, per_channel=per_channel)

    def value_and_slope(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = log_sum(terms, u)
        return value + 1e-3 * float(u @ u), slope + 2e-3 * u

    starts = [np.concatenate([[0.0], random.normal(0, 1, 5)]) for _ in range(4)]
    found = [value_and_slope(minimize_posynomial(value_and_slope, start, 300))[0] for start in starts]
    np.testing.assert_allclose(found, found[0], rtol=1e-5, atol=1e-6)
