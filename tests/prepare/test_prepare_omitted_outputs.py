"""Optional outputs may be omitted by an empty name, first, in the middle or last."""

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.onnx_oracle import run

import quantry

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
COUNT = {"LSTM": 3, "GRU": 2, "RNN": 2}


def recurrent(operator: str, named: tuple[bool, ...]) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    rows = GATES[operator] * 4
    weights = {"w": (1, rows, 8), "r": (1, rows, 4), "u": (4, 2)}
    initializers = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 2, name)
        for name, shape in weights.items()
    ]
    names = [name if kept else "" for name, kept in zip(("all", "last", "cell"), named, strict=False)]
    used = next(name for name in names if name)
    nodes = [
        helper.make_node(operator, ["x", "w", "r"], names, name="layer", hidden_size=4),
        helper.make_node("MatMul", [used, "u"], ["y"], name="head"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 1, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("operator", "named"),
    [
        (operator, named)
        for operator, count in COUNT.items()
        for named in product((True, False), repeat=count)
        if any(named)
    ],
)
def test_recurrent_layers_may_omit_any_output(operator: str, named: tuple[bool, ...]) -> None:
    proto = recurrent(operator, named)
    random = np.random.default_rng(1)
    data = [{"x": random.standard_normal((3, 1, 8)).astype(np.float32)} for _ in range(3)]
    for preset in ("S8S8_AAWS", "RECOMMENDED-CPU", "RECOMMENDED-NPU"):
        result = quantry.quantize(proto, data, preset, store=None)
        expected, got = run(proto, data[0])["y"], run(result.to_bytes(), data[0])["y"]
        np.testing.assert_allclose(got, expected, atol=0.05 * np.abs(expected).max() + 0.02)
