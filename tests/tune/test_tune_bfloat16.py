"""Tuning a model with bfloat16 activations: onnxruntime returns none of them to NumPy."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import quantry


def test_tensor_that_a_later_part_reads() -> None:
    random = np.random.default_rng(0)
    sizes = {"first": (8, 3, 3, 3), "gamma": (8,), "beta": (8,), "wide": (8, 32), "narrow": (32, 8)}
    weights = [
        numpy_helper.from_array(random.normal(size=size).astype(np.float32), name) for name, size in sizes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["a"], ["t"], "moved", perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["t", "gamma", "beta"], ["n"], "norm", axis=-1),
        helper.make_node("MatMul", ["n", "wide"], ["m"], "up"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "narrow"], ["o"], "down"),
        helper.make_node("Add", ["o", "t"], ["y"], "residual"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 8, 8])]
    graph = helper.make_graph(nodes, "block", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [{"x": random.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(3)]
    result = quantry.quantize(model, data, "BF16_MIXED_MXINT8_ADAQUANT", store=None)
    assert result.evaluation.metrics["sqnr"].value > 25
