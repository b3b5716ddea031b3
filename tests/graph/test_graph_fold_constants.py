import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_oracle import assert_same_outputs, graph_from_text, op_types
from quantry.graph.passes.fold_constants import fold_constants
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import name_nodes
from quantry.runtime.sessions import run_once

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float y) '


def _check(text: str, left: list[str], **weights: np.ndarray):
    model = graph_from_text(text, **weights)
    name_nodes(model)
    before = model.clone()
    for _ in range(4):
        infer_shapes(model)
        fold_constants(model)
    assert op_types(model) == left
    assert_same_outputs(before, model)
    return model


@pytest.mark.parametrize(
    "value",
    [
        "value = float[3] {1.0, 2.0, 3.0}",
        "value_float = 2.5",
        "value_floats = [1.0, 2.0, 3.0]",
    ],
)
def test_constant_becomes_an_initializer_of_the_same_name(value):
    model = _check(HEAD + f"{{ c = Constant<{value}>() y = Mul(x, c) }}", ["Mul"])
    assert list(model.graph.initializers) == ["c"]


@pytest.mark.parametrize("value", ["value_int = 1", "value_ints = [1, 0]"])
def test_constant_integers(value):
    _check(HEAD + f"{{ c = Constant<{value}>() y = Gather<axis = 0>(x, c) }}", ["Gather"])


def test_constant_that_is_a_graph_output_stays():
    text = HEAD.replace("float y", "float y, float[1] c")
    _check(text + "{ c = Constant<value = float[1] {1.0}>() y = Mul(x, c) }", ["Constant", "Mul"])


def test_shape_chain_of_a_static_input():
    body = """{ s = Shape(x) n = Gather<axis = 0>(s, zero) m = Mul(n, three) u = Unsqueeze(m, axes)
                t = Concat<axis = 0>(u, minus) y = Reshape(x, t) }"""
    constants = {"zero": np.array(0), "three": np.array(3), "axes": np.array([0]), "minus": np.array([-1])}
    _check(HEAD + body, ["Reshape"], **constants)


def test_shape_chain_of_a_dynamic_input_folds_only_what_is_known():
    text = HEAD.replace("float[2, 3]", "float[n, 3]")
    body = "{ a = Shape<start = 1>(x) b = Shape<end = 1>(x) t = Concat<axis = 0>(a, b) y = Reshape(x, t) }"
    _check(text + body, ["Shape", "Concat", "Reshape"])


def test_size_of_a_static_input():
    _check(HEAD + "{ s = Size(x) f = Cast<to = 1>(s) y = Div(x, f) }", ["Div"])


@pytest.mark.parametrize(
    "expression",
    [
        "Transpose(w)",
        "Unsqueeze(w, axes)",
        "Reshape(w, shape)",
        "Slice(w, axes, one)",
        "Cast<to = 7>(w)",
        "Concat<axis = 0>(w, w)",
        "Where(mask, w, w)",
        "ReduceSum(w, axes)",
        "Sqrt(w)",
        "MatMul(w, v)",
        "Pad(w, pads)",
        "Expand(w, shape2)",
        "Softmax(w)",
    ],
)
def test_node_of_constants_is_folded_as_onnxruntime_computes_it(expression):
    weights = {
        "w": np.random.default_rng(0).uniform(0.5, 2, (2, 3)).astype(np.float32),
        "v": np.random.default_rng(1).uniform(0.5, 2, (3, 2)).astype(np.float32),
        "axes": np.array([0]),
        "one": np.array([1]),
        "shape": np.array([3, -1]),
        "shape2": np.array([4, 2, 3]),
        "mask": np.array([True, False, True]),
        "pads": np.array([0, 1, 1, 0]),
    }
    model = graph_from_text(HEAD + f"{{ k = {expression} f = Cast<to = 1>(k) y = Identity(f) z = Relu(x) }}", **weights)
    name_nodes(model)
    before = model.clone()
    infer_shapes(model)
    assert fold_constants(model)
    assert op_types(model) == ["Identity", "Relu"]
    # Elementwise arithmetic may differ in the last bit between numpy and onnxruntime.
    assert_same_outputs(before, model, rtol=3e-7)


def test_two_outputs_of_one_node():
    body = "{ a, b = Split<axis = 1>(w, sizes) s = Mul(x, a) y = Add(s, b) }"
    weights = {"w": np.arange(4, dtype=np.float32).reshape(1, 4), "sizes": np.array([1, 3])}
    _check(HEAD + body, ["Mul", "Add"], **weights)


def test_large_result_is_not_folded():
    body = "{ t = ConstantOfShape<value = float[1] {1.0}>(shape) r = ReduceMax(t) y = Mul(x, r) }"
    model = _check(HEAD + body, ["ConstantOfShape", "ReduceMax", "Mul"], shape=np.array([1000, 1000]))
    assert list(model.graph.initializers) == ["shape"]


def test_result_smaller_than_its_inputs_is_folded_whatever_its_size():
    body = "{ t = Transpose(w) r = ReduceMax(t) y = Mul(x, r) }"
    _check(HEAD + body, ["Mul"], w=np.ones((600, 600), np.float32))


def test_random_nodes_stay():
    text = HEAD + "{ r = RandomNormal<shape = [2, 3], seed = 1.0>() y = Add(x, r) }"
    model = graph_from_text(text)
    infer_shapes(model)
    assert tuple(map(str, fold_constants(model))) == ()


def test_initializer_that_is_an_input_is_no_constant():
    model = graph_from_text(
        HEAD.replace("float[2, 3] x", "float[2, 3] x, float[3] w") + "{ n = Neg(w) y = Add(x, n) }",
        w=np.ones(3, np.float32),
    )
    infer_shapes(model)
    assert tuple(map(str, fold_constants(model))) == ()


def test_constants_inside_a_subgraph_stay_inside():
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) { y = If(c)<
        then_branch = t () => (float[2] p) { k = Constant<value = float[2] {1.0, 2.0}>() m = Neg(k) p = Add(x, m) },
        else_branch = e () => (float[2] q) { m2 = Neg(outer) q = Mul(x, m2) }> }"""
    model = graph_from_text(text, outer=np.array([3, 4], np.float32))
    before = model.clone()
    infer_shapes(model)
    assert tuple(map(str, fold_constants(model))) == (
        "folded 1 Constant nodes into initializers",
        "folded 2 nodes with constant inputs",
    )
    assert list(model.graph.initializers) == ["outer"]
    for seed in range(4):
        assert_same_outputs(before, model, seed=seed)


def test_range_of_constants():
    text = HEAD + "{ a = Range(start, limit, step) f = Cast<to = 1>(a) r = ReduceSum(f) y = Mul(x, r) }"
    _check(text, ["Mul"], start=np.array(0), limit=np.array(5), step=np.array(1))


def test_known_axes_of_a_dynamic_shape_are_folded():
    text = HEAD.replace("float[2, 3]", "float[n, 3]")
    body = """{ s = Shape(x) c = Gather<axis = 0>(s, one) d = Mul(c, c) u = Unsqueeze(d, axes)
                t = Concat<axis = 0>(u, u) y = Expand(one_float, t) z = Neg(x) }"""
    constants = {"one": np.array(1), "axes": np.array([0]), "one_float": np.ones(1, np.float32)}
    model = graph_from_text(text + body, **constants)
    name_nodes(model)
    before = model.clone()
    infer_shapes(model)
    fold_constants(model)
    assert op_types(model) == ["Shape", "Expand", "Neg"]
    np.testing.assert_array_equal(model.graph.initializers["t"].const_value.numpy(), [9, 9])
    assert_same_outputs(before, model)


def test_weights_computed_from_constants_are_folded_by_the_runtime() -> None:
    # Weight standardization as exported by torch: BatchNormalization in training mode of a constant.
    weight = np.random.default_rng(0).normal(size=(8, 2, 3, 3)).astype(np.float32)
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    constants = {
        "w": weight,
        "flat": np.array([1, 8, -1]),
        "back": np.array([8, 2, 3, 3]),
        "scale": ones,
        "bias": zeros,
        "mean": zeros,
        "var": ones,
    }
    nodes = [
        onnx.helper.make_node("Reshape", ["w", "flat"], ["r"]),
        onnx.helper.make_node(
            "BatchNormalization", ["r", "scale", "bias", "mean", "var"], ["n", "m", "v"], training_mode=1
        ),
        onnx.helper.make_node("Reshape", ["n", "back"], ["k"]),
        onnx.helper.make_node("Conv", ["x", "k"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes,
            "g",
            [value("x", 1, [1, 2, 4, 4])],
            [value("y", 1, [1, 8, 2, 2])],
            [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    loaded = ir.serde.deserialize_model(proto)
    for _ in range(3):
        infer_shapes(loaded)
        fold_constants(loaded, run_once)
    assert [node.op_type for node in loaded.graph] == ["Conv"]
    kernel = loaded.graph.initializers["k"].const_value
    assert kernel is not None
    flat = weight.reshape(8, -1)
    expected = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(kernel.numpy().reshape(8, -1), expected, atol=1e-5)
