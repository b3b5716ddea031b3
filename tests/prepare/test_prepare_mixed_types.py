"""Models that compute in float32 with parts in other types, that expand to many nodes, or that cannot run."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import quantry
from onnx_oracle import from_text, run
from quantry.errors import ModelError
from quantry.graph.wellformed import EXPANSION_LIMIT

RANDOM = np.random.default_rng(4)
HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[2,16] x) => (float[2,8] y) {'
NUMBERS = {"float16": (10, np.float16), "double": (11, np.float64)}


def weight(kind: type, *shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / 4).astype(kind)


SAMPLES = [{"x": RANDOM.standard_normal((2, 16)).astype(np.float32)} for _ in range(4)]


@pytest.mark.parametrize("recipe", ["A8W8", "XINT8", "CPU_INT8", "MATMUL_NBITS", "UINT8_DYNAMIC_QUANT", "FP16"])
@pytest.mark.parametrize("name", NUMBERS)
def test_parts_in_another_type_stay_as_they_are(name: str, recipe: str) -> None:
    number, kind = NUMBERS[name]
    parts = f"b = Cast <to = {number}> (a) c = MatMul (b, w1) d = Cast <to = 1> (c)"
    text = f"{HEAD} a = MatMul (x, w0) {parts} y = Relu (d) }}"
    model = from_text(text, w0=weight(np.float32, 16, 32), w1=weight(kind, 32, 8))
    content = quantry.quantize(model.SerializeToString(), SAMPLES, recipe, store=None).to_bytes()
    kept = {entry.name: entry.data_type for entry in onnx.load_model_from_string(content).graph.initializer}
    assert kept["w1"] == number
    assert "w0" not in kept
    expected, found = run(model, SAMPLES[0])["y"], run(content, SAMPLES[0])["y"]
    assert np.square(found - expected).sum() < 0.04 * np.square(expected).sum()


def test_model_whose_layers_are_all_float16_is_refused() -> None:
    text = f"{HEAD} a = Cast <to = 10> (x) b = MatMul (a, w0) y = Cast <to = 1> (b) }}"
    model = from_text(text, w0=weight(np.float16, 16, 8))
    with pytest.raises(ModelError, match="got a float16 model"):
        quantry.quantize(model.SerializeToString(), SAMPLES, "A8W8", store=None)


def test_model_that_fails_on_any_data_names_its_node() -> None:
    text = f"{HEAD} a = MatMul (x, w0) s = Constant <value_ints = [7, 8]> () [wrong_node] y = Reshape (a, s) }}"
    model = from_text(text.replace("float[2,", "float[N,"), w0=weight(np.float32, 16, 8))
    with pytest.raises(ModelError, match="wrong_node"):
        quantry.quantize(model.SerializeToString(), SAMPLES, "A8W8", store=None)


def test_functions_may_expand_to_many_nodes_if_the_file_has_many() -> None:
    body = [helper.make_node("Relu", [f"t{i}" if i else "x"], [f"t{i + 1}" if i < 99 else "y"]) for i in range(100)]
    block = helper.make_function("local", "Block", ["x"], ["y"], body, [helper.make_opsetid("", 17)])
    calls = [helper.make_node("Block", [f"h{i}"], [f"h{i + 1}"], domain="local") for i in range(250)]
    first = helper.make_node("MatMul", ["x", "w"], ["h0"])
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 16]) for name in ("x", "h250")]
    constants = [numpy_helper.from_array(weight(np.float32, 16, 16), "w")]
    graph = helper.make_graph([first, *calls], "g", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=[block], opset_imports=opsets, ir_version=8)
    assert len(body) * len(calls) > EXPANSION_LIMIT
    result = quantry.quantize(model.SerializeToString(), None, "MATMUL_NBITS", store=None)
    assert result.plan.weights
