"""Every conversion against the value that the NPU's arithmetic gives, computed by onnxruntime."""

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.prepare import prepare
from quantry.prepare.npu import convert_for_npu, pool_factor
from quantry.prepare.npu.pools import first_kernel
from quantry.recipe import NpuConversions, PrepareOptions

OFF = NpuConversions(
    leaky_relu=False,
    sigmoid_to_hard_sigmoid=False,
    hard_sigmoid=False,
    average_pool=False,
    reduce_mean=False,
    clip=False,
    reduce_mean_to_pool=False,
    split_large_pool=False,
    split_to_slice=False,
    batch_norm_to_conv=False,
)
FACTOR = np.float32((2731 / 16384) / (1 / 6))


def graph(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return proto


def converted(proto: onnx.ModelProto, **switches: bool) -> FloatModel:
    return prepare(model_source(proto), PrepareOptions(npu=dataclasses.replace(OFF, **switches)))


def run(model: onnx.ModelProto | ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    content = serialize(model) if isinstance(model, ir.Model) else model.SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def operators(model: FloatModel) -> list[str]:
    return [node.op_type for node in model.model.graph]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("alpha", "numerator"), [(0.1, 26), (0.01, 3), (0.3, 77), (0.001, 0)])
def test_leaky_relu_slope_becomes_a_multiple_of_1_over_256(alpha: float, numerator: int) -> None:
    model = converted(graph(f"g (float[4] x) => (float[4] y) {{ y = LeakyRelu<alpha={alpha}>(x) }}"), leaky_relu=True)
    x = np.array([-1.0, -0.5, 0.0, 2.0], np.float32)
    np.testing.assert_array_equal(run(model.model, x=x)[0], np.where(x < 0, x * np.float32(numerator / 256), x))
    assert any("1 LeakyRelu" in str(note) for note in model.notes)


def test_leaky_relu_with_a_fitting_slope_is_left_alone_without_a_note() -> None:
    model = converted(graph("g (float[4] x) => (float[4] y) { y = LeakyRelu<alpha=0.25>(x) }"), leaky_relu=True)
    assert not any("npu" in str(note) for note in model.notes)


def test_sigmoid_becomes_hard_sigmoid_and_the_note_says_how_to_keep_it() -> None:
    model = converted(graph("g (float[5] x) => (float[5] y) { y = Sigmoid(x) }"), sigmoid_to_hard_sigmoid=True)
    x = np.array([-4.0, -3.0, 0.0, 1.5, 9.0], np.float32)
    np.testing.assert_allclose(run(model.model, x=x)[0], [0.0, 0.0, 0.5, 0.75, 1.0], rtol=1e-6)
    (note,) = (note for note in model.notes if "Sigmoid" in str(note))
    assert "prepare.npu.sigmoid_to_hard_sigmoid: false" in str(note)
    assert "1 Sigmoid" in str(note)


def test_hard_sigmoid_of_a_sixth_is_multiplied_by_the_fixed_point_slope() -> None:
    text = "g (float[3] x) => (float[3] y) { y = HardSigmoid<alpha=0.16666667, beta=0.5>(x) }"
    model = converted(graph(text), hard_sigmoid=True)
    x = np.array([0.0, 1.0, 6.0], np.float32)
    np.testing.assert_array_equal(run(model.model, x=x)[0], run(graph(text), x=x)[0] * FACTOR)
    assert operators(model) == ["HardSigmoid", "Mul"]


def test_hard_sigmoid_with_another_slope_has_no_factor() -> None:
    model = converted(graph("g (float[3] x) => (float[3] y) { y = HardSigmoid<alpha=0.2>(x) }"), hard_sigmoid=True)
    assert operators(model) == ["HardSigmoid"]


@pytest.mark.parametrize(
    ("side", "factor"),
    [(3, 9 * 7 / 64), (5, 25 * 10 / 256), (6, 36 * 7 / 256), (7, 49 * 21 / 1024), (14, 196 * 21 / 4096)],
)
def test_wired_reciprocals_of_square_kernels(side: int, factor: float) -> None:
    assert pool_factor(side, side) == factor


def test_powers_of_two_have_an_exact_reciprocal_and_rectangles_and_huge_kernels_no_factor() -> None:
    assert [pool_factor(side, side) for side in (1, 2, 4, 8, 16, 256, 300)] == [1.0] * 7
    assert pool_factor(3, 5) == 1.0


@given(st.integers(2, 255))
def test_factor_is_that_of_the_best_reciprocal_below_the_shift_limit(side: int) -> None:
    size = side * side
    if side in (3, 5, 6, 7, 14):
        return
    shifts = [n for n in range(64) if n < 7 + int(np.ceil(np.log2(size)))]
    best = min(abs(round(2**n / size) / 2**n - 1 / size) for n in shifts)
    assert abs(pool_factor(side, side) / size - 1 / size) == pytest.approx(best, abs=1e-12)
    assert abs(pool_factor(side, side) - 1) < 1 / 128


@pytest.mark.parametrize(
    ("node", "side", "shape"),
    [
        ("AveragePool<kernel_shape=[3,3], strides=[1,1]>(x)", 3, "1,2,5,5"),
        ("AveragePool<kernel_shape=[5,5], strides=[1,1], pads=[2,2,2,2]>(x)", 5, "1,2,5,5"),
        ("GlobalAveragePool(x)", 7, "1,2,1,1"),
    ],
)
def test_average_pools_are_multiplied_by_their_factor(node: str, side: int, shape: str) -> None:
    proto = graph(f"g (float[1,2,7,7] x) => (float[{shape if side != 5 else '1,2,7,7'}] y) {{ y = {node} }}")
    model = converted(proto, average_pool=True)
    x = normal(1, 2, 7, 7)
    np.testing.assert_array_equal(run(model.model, x=x)[0], run(proto, x=x)[0] * np.float32(pool_factor(side, side)))
    assert operators(model)[-1] == "Mul"
    assert model.model.graph.outputs[0].name == "y"


@pytest.mark.parametrize("opset", [17, 18])
def test_spatial_mean_becomes_a_global_pool_with_the_same_value(opset: int) -> None:
    if opset < 18:
        proto = graph("g (float[2,3,6,6] x) => (float[2,3,1,1] y) { y = ReduceMean<axes=[-1,2]>(x) }", opset)
    else:
        proto = graph(
            "g (float[2,3,6,6] x) => (float[2,3,1,1] y) { y = ReduceMean(x, axes) }", opset, axes=np.array([2, 3])
        )
    model = converted(proto, reduce_mean_to_pool=True)
    x = normal(2, 3, 6, 6)
    assert operators(model) == ["GlobalAveragePool"]
    np.testing.assert_allclose(run(model.model, x=x)[0], run(proto, x=x)[0], rtol=1e-5, atol=1e-6)


def test_spatial_mean_without_kept_dimensions_stays_and_gets_the_factor() -> None:
    proto = graph("g (float[2,3,6,6] x) => (float[2,3] y) { y = ReduceMean<axes=[2,3], keepdims=0>(x) }")
    model = converted(proto, reduce_mean_to_pool=True, reduce_mean=True, average_pool=True)
    x = normal(2, 3, 6, 6)
    assert operators(model) == ["ReduceMean", "Mul"]
    np.testing.assert_array_equal(run(model.model, x=x)[0], run(proto, x=x)[0] * np.float32(36 * 7 / 256))


def test_mean_over_other_axes_is_no_pool() -> None:
    proto = graph("g (float[2,3,6,6] x) => (float[2,1,6,6] y) { y = ReduceMean<axes=[1]>(x) }")
    assert operators(converted(proto, reduce_mean_to_pool=True, reduce_mean=True)) == ["ReduceMean"]


def test_large_global_pool_is_split_in_two_with_the_same_value() -> None:
    proto = graph("g (float[1,2,28,28] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }")
    model = converted(proto, split_large_pool=True)
    x = normal(1, 2, 28, 28)
    assert operators(model) == ["AveragePool", "GlobalAveragePool"]
    np.testing.assert_allclose(run(model.model, x=x)[0], run(proto, x=x)[0], rtol=1e-4, atol=1e-6)


def test_both_parts_of_a_large_pool_get_their_factors() -> None:
    proto = graph("g (float[1,1,42,42] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }")
    model = converted(proto, split_large_pool=True, average_pool=True)
    # 42 = 2 * 21: a kernel of 2 is exact, one of 21 is not.
    x = np.ones((1, 1, 42, 42), np.float32)
    assert operators(model) == ["AveragePool", "GlobalAveragePool", "Mul"]
    assert run(model.model, x=x)[0].item() == np.float32(pool_factor(21, 21))


@given(st.integers(1, 40), st.integers(1, 40))
def test_split_kernels_divide_the_image_and_both_parts_fit(height: int, width: int) -> None:
    kernel = first_kernel(height, width)
    if kernel is not None:
        assert height % kernel[0] == 0
        assert width % kernel[1] == 0
        assert kernel[0] * kernel[1] <= 512
        assert height * width <= 512 * kernel[0] * kernel[1]


def test_pool_over_a_prime_that_is_too_large_stays_with_a_note() -> None:
    proto = graph("g (float[1,1,1,521] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }")
    model = converted(proto, split_large_pool=True)
    assert operators(model) == ["GlobalAveragePool"]
    assert any("kept 1 large GlobalAveragePool" in str(note) for note in model.notes)


@pytest.mark.parametrize("sizes", [None, [1, 2, 3]])
def test_split_becomes_slices_with_equal_values_and_names(sizes: list[int] | None) -> None:
    outputs = "float[2,a] p, float[2,b] q, float[2,c] r"
    if sizes is None:
        proto = graph(f"g (float[2,6] x) => ({outputs}) {{ p, q, r = Split<axis=-1>(x) }}")
    else:
        proto = graph(f"g (float[2,6] x) => ({outputs}) {{ p, q, r = Split<axis=1>(x, s) }}", s=np.array(sizes))
    model = converted(proto, split_to_slice=True)
    x = normal(2, 6)
    assert operators(model) == ["Slice"] * 3
    assert [value.name for value in model.model.graph.outputs] == ["p", "q", "r"]
    for ours, theirs in zip(run(model.model, x=x), run(proto, x=x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_unused_parts_of_a_split_are_not_sliced() -> None:
    proto = graph("g (float[2,6] x) => (float[2,3] y) { p, q = Split<axis=1>(x) y = Relu(q) }")
    model = converted(proto, split_to_slice=True)
    assert operators(model) == ["Slice", "Relu"]
    np.testing.assert_array_equal(run(model.model, x=np.ones((2, 6), np.float32))[0], np.ones((2, 3)))


def test_leftover_batch_norm_becomes_a_depthwise_convolution() -> None:
    values = {name: np.abs(normal(3)) + index for index, name in enumerate(("scale", "shift", "mean", "variance"))}
    norm = "y = BatchNormalization(r, scale, shift, mean, variance)"
    proto = graph(f"g (float[1,3,4,4] x) => (float[1,3,4,4] y) {{ r = Relu(x) {norm} }}", **values)
    model = converted(proto, batch_norm_to_conv=True)
    x = normal(1, 3, 4, 4)
    assert operators(model) == ["Relu", "Conv"]
    np.testing.assert_allclose(run(model.model, x=x)[0], run(proto, x=x)[0], rtol=1e-5, atol=1e-6)


def test_clip_bounds_are_rounded_to_integers() -> None:
    proto = graph(
        "g (float[4] x) => (float[4] y) { y = Clip(x, low, high) }", low=np.float32(-1.4), high=np.float32(5.6)
    )
    x = np.array([-9.0, 0.3, 5.9, 9.0], np.float32)
    np.testing.assert_array_equal(run(converted(proto, clip=True).model, x=x)[0], np.clip(x, -1, 6))


def test_clip_bounds_that_would_meet_stay() -> None:
    proto = graph(
        "g (float[4] x) => (float[4] y) { y = Clip(x, low, high) }", low=np.float32(-0.4), high=np.float32(0.4)
    )
    x = np.array([-9.0, 0.3, 5.9, 9.0], np.float32)
    np.testing.assert_array_equal(run(converted(proto, clip=True).model, x=x)[0], run(proto, x=x)[0])


def test_no_switch_changes_nothing() -> None:
    proto = graph("g (float[1,2,3,3] x) => (float[1,2,1,1] y) { s = Sigmoid(x) y = GlobalAveragePool(s) }")
    assert convert_for_npu(ir.from_proto(proto), OFF) == ()
    assert operators(converted(proto)) == ["Sigmoid", "GlobalAveragePool"]


def test_swish_keeps_its_names_and_computes_the_hard_one() -> None:
    proto = graph("g (float[5] x) => (float[5] y) { s = Sigmoid(x) y = Mul(x, s) }")
    model = converted(proto, sigmoid_to_hard_sigmoid=True, hard_sigmoid=True)
    x = np.array([-4.0, -1.0, 0.0, 1.5, 9.0], np.float32)
    expected = x * (np.clip(x / np.float32(6) + np.float32(0.5), 0, 1) * FACTOR)
    np.testing.assert_allclose(run(model.model, x=x)[0], expected, rtol=1e-6)
    assert operators(model) == ["HardSigmoid", "Mul", "Mul"]


def test_long_lists_of_nodes_do_not_grow_the_note() -> None:
    body = " ".join(f"t{index + 1} = Sigmoid(t{index})" for index in range(40))
    proto = graph(f"g (float[2] t0) => (float[2] t40) {{ {body} }}")
    (note,) = (note for note in converted(proto, sigmoid_to_hard_sigmoid=True).notes if "npu" in str(note))
    assert "40 Sigmoid" in str(note)
    assert "and 34 more" in str(note)
