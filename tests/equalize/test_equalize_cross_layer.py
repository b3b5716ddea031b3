"""Equalization changes weights, and onnxruntime computes the same outputs."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from quantry.equalize import equalize
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.prepare import prepare
from quantry.recipe import CrossLayer, EqualizeOptions, PrepareOptions

ALWAYS = CrossLayer(use_threshold=False)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def uneven(seed: int, *shape: int, axis: int = 0) -> np.ndarray:
    """Weights whose channels differ a hundredfold."""
    random = np.random.default_rng(seed)
    spread = 10.0 ** random.uniform(-1, 1, shape[axis])
    return (random.standard_normal(shape) * np.expand_dims(spread, [i for i in range(len(shape)) if i != axis])).astype(
        np.float32
    )


def prepared(text: str, **weights: np.ndarray) -> FloatModel:
    proto = parser.parse_model(HEAD + text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return prepare(model_source(proto), PrepareOptions())


def equalized(model: FloatModel, options: CrossLayer = ALWAYS) -> FloatModel:
    return equalize(model, EqualizeOptions(options))


def weight(model: FloatModel, name: str) -> np.ndarray:
    return model.model.graph.initializers[name].const_value.numpy()


def run(model: FloatModel, seed: int = 0) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(serialize(model.model), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    feeds = {
        signature.name: random.standard_normal(
            [length if isinstance(length, int) else 2 for length in signature.shape]
        ).astype(signature.dtype)
        for signature in model.inputs
    }
    return list(session.run(None, feeds))


def assert_same(before: FloatModel, after: FloatModel) -> None:
    onnx.checker.check_model(ir.to_proto(after.model))
    for expected, actual in zip(run(before), run(after), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def pair(between: str, groups: int = 1) -> FloatModel:
    """Conv -> ``between`` (from h to r) -> Conv; the second Conv has ``groups``."""
    return prepared(
        f"""g (float[2, 3, 9, 9] x) => (y) {{
            h = Conv<pads = [1, 1, 1, 1]>(x, w0, b0)
            {between}
            y = Conv<group = {groups}>(r, w1, b1)
        }}""",
        w0=uneven(1, 8, 3, 3, 3),
        b0=uneven(2, 8),
        w1=uneven(3, 6, 8 // groups, 3, 3, axis=1),
        b1=uneven(4, 6),
        **SPARE,
    )


SPARE = {
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 2], np.int64),
    "channel_pads": np.array([0, 1, 0, 0, 0, -1, 0, 0], np.int64),
    "slope": uneven(5, 8, 1, 1),
    "low": np.float32(0.0),
    "six": np.float32(6.0),
    "one": np.float32(1.0),
    "sizes": np.array([1, 1, 2, 2], np.float32),
}

LAWFUL = {
    "directly": "r = Identity(h)",
    "Relu": "r = Relu(h)",
    "LeakyRelu": "r = LeakyRelu<alpha = 0.3>(h)",
    "PRelu": "r = PRelu(h, slope)",
    "Clip at zero": "r = Clip(h, low)",
    "MaxPool": "r = MaxPool<kernel_shape = [2, 2], pads = [1, 1, 1, 1]>(h)",
    "AveragePool": "r = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>(h)",
    "Pad": "r = Pad(h, pads)",
    "Pad by reflection": 'r = Pad<mode = "reflect">(h, pads)',
    "Resize": 'r = Resize<mode = "linear">(h, , sizes)',
    "Transpose of rows and columns": "r = Transpose<perm = [0, 1, 3, 2]>(h)",
    "Transpose twice": "t = Transpose<perm = [0, 2, 3, 1]>(h)\n u = Relu(t)\n r = Transpose<perm = [0, 3, 1, 2]>(u)",
    "several": "a = LeakyRelu(h)\n b = Pad(a, pads)\n r = MaxPool<kernel_shape = [2, 2]>(b)",
}

UNLAWFUL = {
    "Sigmoid": ("r = Sigmoid(h)", "Sigmoid is not positively homogeneous"),
    "SiLU": ("s = Sigmoid(h)\n r = Mul(h, s)", "Sigmoid is not positively homogeneous"),
    "HardSwish": ("r = HardSwish(h)", "HardSwish is not positively homogeneous"),
    "Clip6": ("r = Clip(h, low, six)", "Clip with bounds other than 0 is not positively homogeneous"),
    "Pad with ones": ("r = Pad(h, pads, one)", "Pad with values other than 0 is not positively homogeneous"),
    "Pad of channels": ("r = Pad(h, channel_pads)", "Pad adds channels"),
    "residual": ("r = Add(h, h)", "several nodes read its result"),
    "offset": ("r = Add(h, one)", "Add combines or moves channels"),
}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("between", LAWFUL.values(), ids=LAWFUL)
def test_homogeneous_operators_let_factors_pass(between: str, groups: int) -> None:
    before = pair(between, groups)
    after = equalized(before)
    assert not np.allclose(weight(after, "w0"), weight(before, "w0"))
    assert_same(before, after)


@pytest.mark.parametrize(("between", "reason"), UNLAWFUL.values(), ids=UNLAWFUL)
def test_other_operators_stop_it_with_a_reason(between: str, reason: str) -> None:
    before = pair(between)
    after = equalized(before)
    np.testing.assert_array_equal(weight(after, "w0"), weight(before, "w0"))
    assert f"no cross-layer equalization after 1 layers: {reason}" in map(str, after.notes)


def test_ranges_of_a_pair_become_their_geometric_mean() -> None:
    before = pair("r = Relu(h)")
    after = equalized(before, CrossLayer(use_threshold=False, include_bias=False))
    first = np.abs(weight(before, "w0")).max(axis=(1, 2, 3)).astype(np.float64)
    second = np.abs(weight(before, "w1")).max(axis=(0, 2, 3)).astype(np.float64)
    mean = np.sqrt(first * second)
    np.testing.assert_allclose(np.abs(weight(after, "w0")).max(axis=(1, 2, 3)), mean, rtol=1e-6)
    np.testing.assert_allclose(np.abs(weight(after, "w1")).max(axis=(0, 2, 3)), mean, rtol=1e-6)
    np.testing.assert_allclose(weight(after, "b0"), weight(before, "b0") * mean / first, rtol=1e-6)
    np.testing.assert_array_equal(weight(after, "b1"), weight(before, "b1"))


def test_a_depthwise_layer_is_equalized_with_both_neighbours() -> None:
    before = prepared(
        """g (float[1, 3, 8, 8] x) => (y) {
            h = Conv(x, w0, b0)
            a = Relu(h)
            d = Conv<group = 8, pads = [1, 1, 1, 1]>(a, w1, b1)
            b = Relu(d)
            y = Conv(b, w2)
        }""",
        w0=uneven(1, 8, 3, 1, 1),
        b0=uneven(2, 8),
        w1=uneven(3, 8, 1, 3, 3),
        b1=uneven(4, 8),
        w2=uneven(5, 4, 8, 1, 1, axis=1),
    )
    after = equalized(before, CrossLayer(use_threshold=False, include_bias=False))
    assert "cross-layer equalization changed 3 of the 3 layers in 1 chains; sweeps: 1" in map(str, after.notes)
    ranges = [
        np.abs(weight(after, name)).max(axis=axes)
        for name, axes in (("w0", (1, 2, 3)), ("w1", (1, 2, 3)), ("w2", (0, 2, 3)))
    ]
    np.testing.assert_allclose(ranges[1], ranges[0], rtol=1e-5)
    np.testing.assert_allclose(ranges[2], ranges[0], rtol=1e-5)
    assert_same(before, after)
    assert_same(before, equalized(before))


@pytest.mark.parametrize(
    ("flatten", "features"),
    [
        ("f = Flatten(r)", 72),
        ("f = Reshape(r, flat)", 72),
        ("p = GlobalAveragePool(r)\n f = Flatten(p)", 8),
        ("m = ReduceMean<axes = [2, 3], keepdims = 0>(r)\n f = Relu(m)", 8),
        ("m = GlobalMaxPool(r)\n f = Squeeze(m, spatial)", 8),
    ],
)
@pytest.mark.parametrize("transposed", [0, 1])
def test_channels_are_followed_into_a_gemm(flatten: str, features: int, transposed: int) -> None:
    matrix = uneven(3, features, 5)
    before = prepared(
        f"""g (float[2, 3, 3, 3] x) => (y) {{
            h = Conv(x, w0, b0)
            r = Relu(h)
            {flatten}
            y = Gemm<transB = {transposed}, alpha = 0.5>(f, w1, b1)
        }}""",
        w0=uneven(1, 8, 3, 1, 1),
        b0=uneven(2, 8),
        w1=np.ascontiguousarray(matrix.T) if transposed else matrix,
        b1=uneven(4, 5),
        flat=np.array([2, -1], np.int64),
        spatial=np.array([2, 3], np.int64),
    )
    after = equalized(before)
    assert not np.allclose(weight(after, "w0"), weight(before, "w0"))
    assert_same(before, after)


@pytest.mark.parametrize("bias", [uneven(6, 8), uneven(6, 1, 8), uneven(6, 2, 1), np.float32(0.7)], ids=np.shape)
def test_a_gemm_of_any_bias_can_come_first(bias: np.ndarray) -> None:
    before = prepared(
        """g (float[2, 5] x) => (y) {
            h = Gemm<beta = 2.0>(x, w0, b0)
            r = Relu(h)
            y = Gemm(r, w1)
        }""",
        w0=uneven(1, 5, 8, axis=1),
        b0=bias,
        w1=uneven(3, 8, 4),
    )
    after = equalized(before)
    assert not np.allclose(weight(after, "w0"), weight(before, "w0"))
    assert_same(before, after)


def test_matmul_takes_the_bias_added_after_it() -> None:
    before = prepared(
        """g (float[2, 7, 5] x) => (y) {
            h = MatMul(x, w0)
            a = Add(b0, h)
            r = Relu(a)
            y = MatMul(r, w1)
        }""",
        w0=uneven(1, 5, 8, axis=1),
        b0=uneven(2, 8),
        w1=uneven(3, 8, 4),
    )
    after = equalized(before)
    assert not np.allclose(weight(after, "b0"), weight(before, "b0"))
    assert_same(before, after)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_convolutions_take_part_on_either_side(groups: int) -> None:
    before = prepared(
        f"""g (float[1, 4, 5, 5] x) => (y) {{
            h = ConvTranspose<group = {groups}, strides = [2, 2]>(x, w0, b0)
            r = Relu(h)
            y = ConvTranspose<group = {groups}>(r, w1)
        }}""",
        w0=uneven(1, 4, 8 // groups, 2, 2, axis=1),
        b0=uneven(2, 8),
        w1=uneven(3, 8, 3, 3, 3),
    )
    after = equalized(before)
    assert not np.allclose(weight(after, "w0"), weight(before, "w0"))
    assert_same(before, after)


def test_a_result_with_two_readers_or_that_is_an_output_stays() -> None:
    before = prepared(
        """g (float[1, 3, 4, 4] x) => (y, z, h) {
            h = Conv(x, w0)
            r = Conv(x, w3)
            y = Conv(h, w1)
            a = Relu(r)
            p = Conv(a, w1_)
            q = Conv(a, w2)
            z = Add(p, q)
        }""",
        **{name: uneven(index, 3, 3, 1, 1) for index, name in enumerate(("w0", "w1", "w1_", "w2", "w3"))},
    )
    after = equalized(before)
    for name in ("w0", "w1", "w1_", "w2", "w3"):
        np.testing.assert_array_equal(weight(after, name), weight(before, name))
    assert "no cross-layer equalization after 1 layers: several nodes read its result" in map(str, after.notes)


def test_shared_weights_are_left_alone() -> None:
    before = prepared(
        """g (float[1, 4, 4, 4] x) => (y) {
            a = Conv(x, w0)
            b = Relu(a)
            c = Conv(b, w1)
            d = Relu(c)
            y = Conv(d, w1)
        }""",
        w0=uneven(1, 4, 4, 1, 1),
        w1=uneven(2, 4, 4, 1, 1),
    )
    after = equalized(before)
    np.testing.assert_array_equal(weight(after, "w0"), weight(before, "w0"))
    reason = "its weight is not constant, or is shared with another node"
    assert f"no cross-layer equalization after 2 layers: {reason}" in map(str, after.notes)
    assert f"no cross-layer equalization after 1 layers: about the layer after it: {reason}" in map(str, after.notes)


def test_layers_inside_a_branch_are_equalized_too() -> None:
    before = prepared(
        """g (float[1, 3, 4, 4] x, bool c) => (y) {
            y = If (c) <
                then_branch = t () => (float[1, 3, 4, 4] u) { h = Conv(x, w0) r = Relu(h) u = Conv(r, w1) },
                else_branch = e () => (float[1, 3, 4, 4] v) { v = Relu(x) }
            >
        }""",
        w0=uneven(1, 8, 3, 1, 1),
        w1=uneven(2, 3, 8, 1, 1, axis=1),
    )
    after = equalized(before)
    assert not np.allclose(weight(after, "w0"), weight(before, "w0"))
    feeds = {"x": uneven(3, 1, 3, 4, 4), "c": np.array(1, bool)}
    outputs = [
        ort.InferenceSession(serialize(model.model), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for model in (before, after)
    ]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-5 * np.abs(outputs[0]).max())


def test_clip6_is_replaced_only_on_request_and_noted() -> None:
    before = pair("r = Clip(h, low, six)")
    after = equalized(before, CrossLayer(clip6_to_relu=True, use_threshold=False))
    assert [node.op_type for node in after.model.graph] == ["Conv", "Relu", "Conv"]
    assert any("values above 6 are no longer clipped" in str(note) for note in after.notes)
    assert_same(pair("r = Relu(h)"), after)


def test_the_given_model_is_left_as_it_was_and_equal_runs_give_equal_models() -> None:
    before = pair("r = Relu(h)")
    original = serialize(before.model)
    first, second = equalized(before), equalized(before)
    assert serialize(before.model) == original
    assert serialize(first.model) == serialize(second.model) != original
    assert first.__fingerprint__() == second.__fingerprint__()


def test_nothing_asked_for_returns_the_same_model() -> None:
    before = pair("r = Relu(h)")
    assert equalize(before, EqualizeOptions()) is before


def test_per_tensor_rounding_of_weights_loses_less_after_equalization() -> None:
    before = prepared(
        """g (float[4, 3, 9, 9] x) => (y) {
            h = Conv(x, w0, b0)
            a = Relu(h)
            d = Conv<group = 16>(a, w1, b1)
            b = Relu(d)
            y = Conv(b, w2)
        }""",
        w0=uneven(1, 16, 3, 3, 3),
        b0=uneven(2, 16) * np.float32(0.1),
        w1=uneven(3, 16, 1, 3, 3),
        b1=uneven(4, 16) * np.float32(0.1),
        w2=uneven(5, 8, 16, 1, 1, axis=1),
    )
    expected = run(before)[0]

    def error(model: FloatModel) -> float:
        rounded = model.model.clone()
        for name in ("w0", "w1", "w2"):
            value = rounded.graph.initializers[name]
            array = value.const_value.numpy()
            step = np.abs(array).max() / 127
            value.const_value = ir.tensor((np.round(array / step) * step).astype(np.float32), name=name)
        return float(np.mean((run(FloatModel(rounded))[0] - expected) ** 2))

    assert error(equalized(before)) < 0.5 * error(before)
