import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_oracle import assert_same_outputs, graph_from_text, op_types
from quantry.graph.passes.fold_batch_norm import fold_batch_norm
from quantry.graph.passes.tidy import name_nodes

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '


def _statistics(channels: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "gamma": random.standard_normal(channels).astype(np.float32),
        "beta": random.standard_normal(channels).astype(np.float32),
        "mean": random.standard_normal(channels).astype(np.float32),
        "var": random.uniform(0.01, 2, channels).astype(np.float32),
    }


def _weights(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _check(text: str, *, folded: bool = True, **weights: np.ndarray):
    model = graph_from_text(HEAD + text, **weights)
    name_nodes(model)
    before = model.clone()
    notes = fold_batch_norm(model)
    assert_same_outputs(before, model, rtol=3e-6)
    assert ("BatchNormalization" not in op_types(model)) == folded
    return model, notes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_conv(group, bias):
    text = f"(float[2, 4, 5, 5] x) => (float[2, 8, 3, 3] y) {{ c = Conv<group = {group}>(x, w{', b' if bias else ''})"
    text += " y = BatchNormalization<epsilon = 0.001>(c, gamma, beta, mean, var) }"
    weights = {"w": _weights(8, 4 // group, 3, 3), **_statistics(8)} | ({"b": _weights(8)} if bias else {})
    model, notes = _check(text, **weights)
    assert tuple(map(str, notes)) == ("folded 1 BatchNormalization nodes",)
    assert [value.name for value in model.graph.node(0).inputs] == ["x", "w", "b" if bias else "Conv_0_bias"]
    assert model.graph.outputs[0].name == "y"


@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose(group):
    text = (
        f"(float[2, 4, 3, 3] x) => (float[2, 6, 6, 6] y) {{ c = ConvTranspose<strides = [2, 2], group = {group}>(x, w)"
    )
    text += " y = BatchNormalization(c, gamma, beta, mean, var) }"
    _check(text, w=_weights(4, 6 // group, 2, 2), **_statistics(6))


def test_conv_of_one_spatial_axis():
    text = (
        "(float[2, 3, 9] x) => (float[2, 5, 7] y) { c = Conv(x, w) y = BatchNormalization(c, gamma, beta, mean, var) }"
    )
    _check(text, w=_weights(5, 3, 3), **_statistics(5))


@settings(max_examples=25, deadline=None)
@given(
    trans_b=st.booleans(),
    alpha=st.sampled_from([1.0, 0.5, -2.0]),
    beta=st.sampled_from([1.0, 0.0, 3.0]),
    bias=st.sampled_from([None, (), (1,), (5,), (1, 5), (1, 1)]),
    seed=st.integers(0, 1000),
)
def test_gemm(trans_b, alpha, beta, bias, seed):
    inputs = "x, w" if bias is None else "x, w, b"
    text = f"(float[3, 4] x) => (float[3, 5] y) {{ c = Gemm<transB = {int(trans_b)}, alpha = {alpha}, beta = {beta}>"
    text += f"({inputs}) y = BatchNormalization(c, gamma, beta, mean, var) }}"
    weights = {"w": _weights(*((5, 4) if trans_b else (4, 5)), seed=seed), **_statistics(5, seed)}
    _check(text, **weights | ({} if bias is None else {"b": _weights(*bias, seed=seed + 1)}))


def test_gemm_with_a_bias_for_each_row_stays():
    text = "(float[3, 4] x) => (float[3, 5] y) { c = Gemm(x, w, b) y = BatchNormalization(c, gamma, beta, mean, var) }"
    _, notes = _check(text, folded=False, w=_weights(4, 5), b=_weights(3, 5), **_statistics(5))
    assert tuple(map(str, notes)) == (
        "kept 1 BatchNormalization nodes: its channels do not match the weights before it",
    )


def test_result_with_another_reader_stays():
    text = "(float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y, float[1, 3, 4, 4] z) { c = Conv(x, w)"
    text += " y = BatchNormalization(c, gamma, beta, mean, var) z = Relu(c) }"
    _, notes = _check(text, folded=False, w=_weights(3, 3, 1, 1), **_statistics(3))
    assert tuple(map(str, notes)) == ("kept 1 BatchNormalization nodes: the result before it has another reader",)


def test_result_that_is_a_graph_output_stays():
    text = "(float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y, float[1, 3, 4, 4] c) { c = Conv(x, w)"
    text += " y = BatchNormalization(c, gamma, beta, mean, var) }"
    _check(text, folded=False, w=_weights(3, 3, 1, 1), **_statistics(3))


def test_nothing_linear_before_it_stays():
    text = "(float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) { r = Relu(x)"
    text += " y = BatchNormalization(r, gamma, beta, mean, var) }"
    _, notes = _check(text, folded=False, **_statistics(3))
    assert tuple(map(str, notes)) == ("kept 1 BatchNormalization nodes: no Conv, ConvTranspose or Gemm before it",)


def test_weights_that_are_inputs_stay():
    text = "(float[1, 3, 4, 4] x, float[3, 3, 1, 1] w) => (float[1, 3, 4, 4] y) { c = Conv(x, w)"
    text += " y = BatchNormalization(c, gamma, beta, mean, var) }"
    _, notes = _check(text, folded=False, **_statistics(3))
    assert tuple(map(str, notes)) == ("kept 1 BatchNormalization nodes: the weights before it are not constant",)


def test_shared_weight_is_copied():
    text = "(float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y, float[1, 3, 4, 4] z) { a = Conv(x, w) b = Conv(x, w)"
    text += " y = BatchNormalization(a, gamma, beta, mean, var) z = Relu(b) }"
    model, _ = _check(text, w=_weights(3, 3, 1, 1), **_statistics(3))
    assert [node.inputs[1].name for node in model.graph if node.op_type == "Conv"] == ["w_Conv_0", "w"]


def test_two_in_a_row():
    text = "(float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) { c = Conv(x, w)"
    text += " d = BatchNormalization(c, gamma, beta, mean, var)"
    text += " y = BatchNormalization(d, gamma, beta, mean, var) }"
    _, notes = _check(text, w=_weights(3, 3, 1, 1), **_statistics(3))
    assert tuple(map(str, notes)) == ("folded 2 BatchNormalization nodes",)


def test_inside_a_subgraph_with_weights_outside():
    text = """(float[1, 3, 4, 4] x, bool c) => (float[1, 3, 4, 4] y) { y = If(c)<
        then_branch = t () => (float p) { k = Conv(x, w) p = BatchNormalization(k, gamma, beta, mean, var) },
        else_branch = e () => (float q) { q = Conv(x, w) }> }"""
    model = graph_from_text(HEAD + text, w=_weights(3, 3, 1, 1), **_statistics(3))
    name_nodes(model)
    before = model.clone()
    assert tuple(map(str, fold_batch_norm(model))) == ("folded 1 BatchNormalization nodes",)
    for seed in range(4):
        assert_same_outputs(before, model, rtol=3e-6, seed=seed)


def test_factors_that_overflow_the_weights_are_not_folded():
    statistics = _statistics(3) | {"gamma": np.full(3, 3e38, np.float32)}
    text = """(float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y)
        { k = Conv(x, w) y = BatchNormalization(k, gamma, beta, mean, var) }"""
    model = graph_from_text(HEAD + text, w=10 + np.abs(_weights(3, 3, 1, 1)), **statistics)
    name_nodes(model)
    assert tuple(map(str, fold_batch_norm(model))) == (
        "kept 1 BatchNormalization nodes: its factors are too large for the weights before it",
    )
