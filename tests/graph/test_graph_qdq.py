"""The one reader of Q/DQ pairs: which nodes they are, and what they say about integers."""

import numpy as np
import onnx_ir as ir
import pytest

from quantry.emit.local_functions import CONTRIB, STANDARD, VITIS, Dialect
from quantry.graph.qdq import (
    QdqTensors,
    before_pair,
    dequantizers_of,
    is_dequantize,
    is_fake_quantize,
    is_pair_node,
    is_quantize,
    quantizers_of,
    read_through,
    tensor_of,
)

TEXT = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[1,2,3,3] x) => (float[1,2,3,3] y)
<float s = {0.5}, uint8 z = {3}, int8[2,2,1,1] w = {1, -2, 3, 4}, float[2] ws = {0.25, 0.5}, int8[2] wz = {0, 1},
 int32[2] b = {8, -8}, float[2] bs = {0.125, 0.25}, float[2,1] gs = {1.0, 2.0}> {
    xq = QuantizeLinear(x, s, z)
    xd = DequantizeLinear(xq, s, z)
    wd = DequantizeLinear<axis = 0>(w, ws, wz)
    bd = DequantizeLinear<axis = 0>(b, bs)
    c = Conv(xd, wd, bd)
    yq = com.microsoft.QuantizeLinear(c, s)
    y = com.microsoft.DequantizeLinear(yq, s)
}"""


@pytest.fixture
def graph() -> ir.Graph:
    return ir.from_onnx_text(TEXT).graph


def node(graph: ir.Graph, output: str) -> ir.Node:
    return next(node for node in graph if node.outputs[0].name == output)


@pytest.mark.parametrize(
    "dialect", dict.fromkeys((STANDARD, CONTRIB, *VITIS.values())), ids=lambda dialect: dialect.quantize
)
def test_pairs_of_every_dialect_that_is_written_are_read(dialect: Dialect) -> None:
    quantize, restore = (ir.node(name, []) for name in (dialect.quantize, dialect.dequantize))
    assert (is_quantize(quantize), is_dequantize(quantize), is_pair_node(quantize)) == (True, False, True)
    assert (is_quantize(restore), is_dequantize(restore), is_pair_node(restore)) == (False, True, True)


def test_other_quantizers_are_no_pairs() -> None:
    assert not is_pair_node(ir.node("DynamicQuantizeLinear", []))
    assert not is_pair_node(None)
    assert is_fake_quantize(ir.node("FixNeuron", []))


def test_parameters_of_an_activation(graph: ir.Graph) -> None:
    for tensor in (tensor_of(node(graph, "xq")), read_through(node(graph, "c").inputs[0])):
        assert tensor is not None
        assert (tensor.integers.name, tensor.step, tensor.offset, tensor.position) == ("xq", 0.5, 3, 1)
        assert (tensor.dtype, tensor.limits, tensor.axis) == (ir.DataType.UINT8, (0, 255), None)
        assert (tensor.is_fixed, tensor.levels, tensor.numbers, tensor.role) == (True, None, None, "activation")


def test_stored_weight_and_bias_as_numbers(graph: ir.Graph) -> None:
    weight, bias = (read_through(value) for value in node(graph, "c").inputs[1:])
    assert weight is not None
    assert bias is not None
    np.testing.assert_array_equal(weight.numbers.reshape(-1), [0.25, -0.5, 1.0, 1.5])
    np.testing.assert_array_equal(bias.numbers, [1.0, -2.0])
    assert (weight.role, weight.axis, weight.step) == ("weight", 0, None)
    assert (bias.role, bias.dtype, bias.is_fixed, bias.offset) == ("bias", ir.DataType.INT32, False, 0)


def test_a_scale_per_block_gives_no_numbers(graph: ir.Graph) -> None:
    restore = node(graph, "wd")
    restore.replace_input_with(1, graph.initializers["gs"])
    restore.attributes.add(ir.AttrInt64("block_size", 1))
    tensor = tensor_of(restore)
    assert tensor is not None
    assert (tensor.block_size, tensor.numbers) == (1, None)


def test_quantizer_without_zero_point_writes_uint8(graph: ir.Graph) -> None:
    tensor = tensor_of(node(graph, "yq"))
    assert tensor is not None
    assert (tensor.dtype, tensor.offset, tensor.zero_point) == (ir.DataType.UINT8, 0, None)


def test_values_before_pairs_and_readers(graph: ir.Graph) -> None:
    conv = node(graph, "c")
    assert [before_pair(value).name for value in conv.inputs] == ["x", "w", "b"]
    assert before_pair(conv.outputs[0]) is conv.outputs[0]
    assert quantizers_of(conv.outputs[0]) == [node(graph, "yq")]
    assert quantizers_of(node(graph, "xd").outputs[0]) == []
    assert dequantizers_of(node(graph, "xq").outputs[0]) == [node(graph, "xd")]


def test_tensors_by_name_count_equal_pairs_once(graph: ir.Graph) -> None:
    scale, zero = graph.initializers["s"], graph.initializers["z"]
    same = ir.node("DequantizeLinear", [node(graph, "xq").outputs[0], scale, zero], name="same")
    wide = ir.Value(name="wide", const_value=ir.tensor(np.array(3, np.uint16), name="wide"), type=None)
    wide.dtype = ir.DataType.UINT16
    graph.register_initializer(wide)
    quantize = ir.node("QuantizeLinear", [graph.inputs[0], scale, wide], name="other_q")
    other = ir.node("DequantizeLinear", [quantize.outputs[0], scale, wide], name="other")
    graph.insert_after(node(graph, "xd"), [same, quantize, other])
    tensors = QdqTensors(graph)
    assert list(tensors.tensors) == ["x", "x (2)", "w", "b", "c"]
    assert tensors.key(same.outputs[0]) == "x"
    assert tensors.of(other.outputs[0]) is tensors.tensors["x (2)"]
    assert tensors.positions() == {"x": 1, "x (2)": 1, "c": 1}
