"""Layers as products of matrices, against onnxruntime's own results."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from tune_models import inputs, network, task_of

from quantry.recipe import TUNABLE_OPERATORS
from quantry.tune.layer_matrix import layer_matrix
from quantry.tune.layers import find_layers

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "InstanceNormalization", "LayerNormalization")


def all_tensors(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    names = [output for node in model.graph.node for output in node.output]
    shown.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(shown.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, feed), strict=True)) | feed


@pytest.mark.parametrize("operator", LAYERS)
def test_columns_times_weight_is_what_onnxruntime_gives(operator: str) -> None:
    model = network()
    feed = inputs((4, 9, 8), 2)[1]
    tensors = all_tensors(model, feed)
    task = task_of(model, inputs((4, 9, 8), 2))
    layers, skipped = find_layers(task.model.model, task.plan, TUNABLE_OPERATORS)
    assert not skipped
    for layer in (layer for layer in layers if layer.node.op_type == operator):
        matrix = layer_matrix(layer)
        weight = matrix.to_matrix(layer.initializer(layer.weight))
        x, y = matrix.columns(tensors[layer.source], tensors[layer.output], 10**6, np.random.default_rng(0))
        bias = 0.0
        if layer.bias is not None:
            bias = layer.initializer(layer.bias).reshape(weight.shape[0], 1, weight.shape[1])
        np.testing.assert_allclose(x @ weight.transpose(0, 2, 1) + bias, y, rtol=1e-3, atol=2e-5)
        assert weight.shape[2] == matrix.width
        np.testing.assert_array_equal(matrix.from_matrix(weight), layer.initializer(layer.weight))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_columns_follow_automatic_padding(mode: str) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 3, 9, 8] x) => (float[1, 4, a, b] y)
    {{
        y = Conv <auto_pad = "{mode}", strides = [2, 3], kernel_shape = [3, 4]> (x, w)
    }}
    """
    model = onnx.parser.parse_model(text)
    values = np.random.default_rng(2).standard_normal((4, 3, 3, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, "w"))
    feed = inputs((3, 9, 8), 1)[0]
    task = task_of(model, [feed])
    (layer,), _ = find_layers(task.model.model, task.plan, TUNABLE_OPERATORS)
    output = all_tensors(model, feed)["y"]
    matrix = layer_matrix(layer)
    x, y = matrix.columns(feed["x"], output, 10**6, np.random.default_rng(0))
    np.testing.assert_allclose(x @ matrix.to_matrix(values).transpose(0, 2, 1), y, rtol=1e-3, atol=1e-5)


@given(factors=st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5))
@settings(max_examples=20, deadline=None)
def test_size_of_a_token_does_not_change_what_it_counts(factors: list[float]) -> None:
    random = np.random.default_rng(3)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[1, 5, 6] x) => (float[1, 5, 4] y) { y = MatMul(x, w) }'
    )
    weight = random.standard_normal((6, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    values = random.standard_normal((1, 5, 6)).astype(np.float32)
    task = task_of(model, [{"x": values}])
    layers, _ = find_layers(task.model.model, task.plan, TUNABLE_OPERATORS)
    matrix = layer_matrix(layers[0])
    larger = values * np.array(factors, np.float32)[:, None]
    one, two = (matrix.columns(x, x @ weight, 10, random) for x in (values, larger))
    for plain, scaled in zip(one, two, strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-4, atol=1e-6)
    tensors = matrix.by_size(*(torch.from_numpy(part)[None, 0] for part in (larger, larger @ weight)))
    for plain, scaled in zip(one, tensors, strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-4, atol=1e-6)


def test_token_that_is_zero_stays_zero() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[1, 2, 3] x) => (float[1, 2, 2] y) { y = MatMul(x, w) }'
    )
    weight = np.ones((3, 2), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    values = np.array([[[0, 0, 0], [1, 2, 3]]], np.float32)
    task = task_of(model, [{"x": values}])
    layers, _ = find_layers(task.model.model, task.plan, TUNABLE_OPERATORS)
    columns, targets = layer_matrix(layers[0]).columns(values, values @ weight, 10, np.random.default_rng(0))
    assert not columns[0, 0].any()
    assert not targets[0, 0].any()
    assert np.isfinite(columns).all()
