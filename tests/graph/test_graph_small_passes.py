"""Passes of a few lines each: names, order, inputs, unused parts, shared weights, Clip(0, 6)."""

import numpy as np
import onnx_ir as ir
import pytest

import quantry
from onnx_oracle import assert_same_outputs, from_text, graph_from_text, op_types, run
from quantry.errors import ModelError
from quantry.graph.passes.clip6_to_relu import clip6_to_relu
from quantry.graph.passes.split_shared_weights import split_shared_weights
from quantry.graph.passes.tidy import (
    forget_placeholders,
    inputs_without_initializers,
    name_nodes,
    remove_unused,
    separate_outputs,
    sort_nodes,
)

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
BRANCHES = """y = If(c)<then_branch = t () => (float[2] p) { [same] p = Add(x, w) },
                        else_branch = e () => (float[2] q) { q = Mul(x, w) }>"""


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def test_nodes_get_unique_names_and_keep_their_own():
    model = graph_from_text(
        HEAD
        + "(float[2] x, bool c) => (float[2] y) { [same] a = Relu(x) [same] b = Neg(a) d = Neg(b) "
        + BRANCHES
        + " }",
        w=_weights(2),
    )
    notes = name_nodes(model)
    names = [node.name for node in ir.traversal.RecursiveGraphIterator(model.graph)]
    assert names == ["same", "Neg_1", "Neg_2", "If_3", "Add_4", "Mul_5"]
    assert tuple(map(str, notes)) == ("named 5 nodes",)
    assert name_nodes(model) == ()


def test_generated_name_avoids_a_name_that_exists():
    model = graph_from_text(HEAD + "(float[2] x) => (float[2] y) { a = Relu(x) [Relu_0] b = Relu(a) y = Relu(b) }")
    name_nodes(model)
    assert [node.name for node in model.graph] == ["Relu_0_1", "Relu_0", "Relu_2"]


def test_nodes_out_of_order_are_sorted():
    proto = from_text(HEAD + "(float[2] x) => (float[2] y) { y = Neg(b) b = Add(a, x) a = Relu(x) }")
    model = ir.from_proto(proto)
    assert tuple(map(str, sort_nodes(model))) == ("sorted the nodes topologically",)
    assert op_types(model) == ["Relu", "Add", "Neg"]
    assert_same_outputs(proto, model)
    assert sort_nodes(model) == ()


def test_order_of_independent_nodes_is_kept():
    body = "{ b = Neg(x) a = Relu(x) d = Abs(x) e = Add(d, a) y = Add(e, b) }"
    model = graph_from_text(HEAD + "(float[2] x) => (float[2] y) " + body)
    before = op_types(model)
    assert sort_nodes(model) == ()
    assert op_types(model) == before


def test_a_subgraph_that_reads_a_later_node_is_sorted():
    body = "{ " + BRANCHES.replace("x, w", "late, w") + " late = Relu(x) }"
    model = graph_from_text(HEAD + "(float[2] x, bool c) => (float[2] y) " + body, w=_weights(2))
    sort_nodes(model)
    assert op_types(model) == ["Relu", "If"]


def test_cycle_is_an_error():
    model = graph_from_text(HEAD + "(float[2] x) => (float[2] y) { a = Add(x, b) b = Relu(a) y = Neg(b) }")
    with pytest.raises(ModelError, match="no cycles, got one; in graph 'g'"):
        sort_nodes(model)


def test_initializers_leave_the_inputs():
    proto = from_text(
        '<ir_version: 3, opset_import: ["": 8]> g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }',
        w=_weights(2),
    )
    model = ir.from_proto(proto)
    assert tuple(map(str, inputs_without_initializers(model))) == ("removed 1 initializers from the inputs",)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert model.ir_version == 4
    assert_same_outputs(proto, model)


def test_unused_parts_go():
    text = """<ir_version: 8, opset_import: ["": 17, "acme": 1, "idle": 1, "com.microsoft": 1]>
        g (float[2] x, float[2] unread) => (float[2] y) { y = acme.Keep(x) dead = Add(x, w) deader = Neg(dead) }
        <domain: "acme", opset_import: ["": 17]> Keep (a) => (b) { b = acme.Inner(a) }
        <domain: "acme", opset_import: ["": 17]> Inner (a) => (b) { b = Relu(a) }
        <domain: "idle", opset_import: ["": 17]> Gone (a) => (b) { b = Relu(a) }"""
    model = graph_from_text(text.replace('"": 17]> Keep', '"": 17, "acme": 1]> Keep'), w=_weights(2))
    notes = tuple(map(str, remove_unused(model)))
    assert notes == ("removed 2 nodes that no output needs", "removed 1 weights that no output needs")
    assert op_types(model) == ["Keep"]
    assert [identifier[1] for identifier in model.functions] == ["Keep", "Inner"]
    assert dict(model.opset_imports) == {"": 17, "acme": 1}
    assert [value.name for value in model.graph.inputs] == ["x", "unread"]


def test_what_only_a_subgraph_reads_is_used():
    body = "{ k = Relu(x) " + BRANCHES.replace("x, w", "k, w") + " }"
    model = graph_from_text(HEAD + "(float[2] x, bool c) => (float[2] y) " + body, w=_weights(2))
    before = model.clone()
    assert remove_unused(model) == ()
    assert_same_outputs(before, model)


def _split(text: str, **weights: np.ndarray) -> tuple[ir.Model, tuple[str, ...]]:
    model = graph_from_text(HEAD + text, **weights)
    name_nodes(model)
    before = model.clone()
    notes = split_shared_weights(model)
    assert_same_outputs(before, model)
    return model, notes


def test_shared_bias_is_copied_for_each_reader():
    text = "(float[1, 3, 2, 2] x) => (float[1, 3, 2, 2] y) { a = Conv(x, w, b) c = Conv(a, w, b) y = Conv(c, v, b) }"
    model, notes = _split(text, w=_weights(3, 3, 1, 1), v=_weights(3, 3, 1, 1), b=_weights(3))
    assert tuple(map(str, notes)) == ("copied 2 weights that several nodes shared",)
    assert [node.inputs[2].name for node in model.graph] == ["b", "b_Conv_1", "b_Conv_2"]
    assert [node.inputs[1].name for node in model.graph] == ["w", "w", "v"]


def test_bias_that_is_also_an_operand_is_copied():
    text = "(float[2, 3] x) => (float[2, 3] y) { a = Add(x, b) y = Gemm(a, w, b) }"
    model, _ = _split(text, w=_weights(3, 3), b=_weights(3))
    assert [node.inputs[-1].name for node in model.graph] == ["b", "b_Gemm_1"]


def test_weight_in_two_roles_is_copied():
    body = """{ a = Gemm(x, w) b = Gemm<transB = 1>(a, w) e = ReduceMax(w) c = Add(b, e) d = MatMul(c, w)
                r = ReduceMin(w) y = Mul(d, r) }"""
    model, notes = _split("(float[2, 3] x) => (float[2, 3] y) " + body, w=_weights(3, 3))
    readers = {node.name: [value.name for value in node.inputs if value.is_initializer()] for node in model.graph}
    assert readers["Gemm_0"] == readers["MatMul_4"] == ["w"]
    assert readers["Gemm_1"] == ["w_Gemm_1"]
    assert readers["ReduceMax_2"] == readers["ReduceMin_5"] == ["w_ReduceMax_2"]
    assert tuple(map(str, notes)) == ("copied 2 weights that several nodes shared",)


@pytest.mark.parametrize("shape", [(2, 3), (1,), (2, 1)])
def test_weight_is_copied_for_a_gemm_whose_bias_is_not_one_number_for_each_channel(shape):
    text = "(float[2, 3] x) => (float[2, 3] y) { a = MatMul(x, w) b = Gemm(a, w, v) y = Gemm(b, w, u) }"
    model, _ = _split(text, w=_weights(3, 3), v=_weights(3), u=_weights(*shape))
    assert [node.inputs[1].name for node in model.graph] == ["w", "w", "w_Gemm_2"]
    for recipe in ("S8S8_AAWS", "CPU_INT8", "XINT8"):
        quantized = quantry.quantize(model, [{"x": _weights(2, 3)}], recipe, store=None)
        assert quantized.to_bytes()


def test_operands_and_single_readers_are_not_copied():
    text = "(float[2, 3] x) => (float[2, 3] y) { a = Add(x, k) b = Mul(a, k) y = Gemm(b, w, v) }"
    _, notes = _split(text, k=_weights(3), w=_weights(3, 3), v=_weights(3))
    assert notes == ()


def test_copy_survives_a_change_of_the_original():
    text = "(float[1, 3] x) => (float[1, 3] y) { a = Gemm(x, w, b) y = Gemm(a, w, b) }"
    model, _ = _split(text, w=_weights(3, 3), b=_weights(3))
    copy = model.graph.initializers["b_Gemm_1"].const_value
    model.graph.initializers["b"].const_value = ir.tensor(np.zeros(3, np.float32))
    np.testing.assert_array_equal(copy.numpy(), _weights(3))


def test_clip_from_0_to_6_becomes_relu():
    text = "(float[64] x) => (float[64] y) { a = Clip(x, zero, six) b = Clip(a, zero, five) y = Clip(b, zero) }"
    model = graph_from_text(HEAD + text, zero=np.float32(0), six=np.float32(6), five=np.float32(5))
    before = model.clone()
    (note,) = clip6_to_relu(model)
    assert str(note).startswith("replaced 1 Clip(0, 6) nodes by Relu")
    assert op_types(model) == ["Relu", "Clip", "Clip"]
    assert_same_outputs(before, model)  # no random value reaches 6


def test_clip_with_limits_that_are_inputs_stays():
    model = graph_from_text(HEAD + "(float[4] x, float z, float s) => (float[4] y) { y = Clip(x, z, s) }")
    assert clip6_to_relu(model) == ()


def test_placeholders_are_no_names_of_axes():
    model = graph_from_text(
        HEAD + "(float[a, b, c] x) => (float[a, b] y) { y = ReduceMax<axes = [0], keepdims = 0>(x) }"
    )
    model.graph.inputs[0].shape = ir.Shape(["?", -1, "batch"])
    model.graph.outputs[0].shape = ir.Shape(["?", "n1"])
    forget_placeholders(model)
    assert [dim if isinstance(dim, int) else dim.value for dim in model.graph.inputs[0].shape] == [None, None, "batch"]
    assert [dim.value for dim in model.graph.outputs[0].shape] == [None, "n1"]


def test_an_output_that_is_listed_twice_gets_a_copy_with_its_own_name():
    model = graph_from_text(HEAD + "(float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }")
    assert tuple(map(str, separate_outputs(model))) == ("named 1 outputs that were listed twice: y_copy",)
    outputs = run(model, {"x": np.array([-1, 2], np.float32)})
    assert {name: array.tolist() for name, array in outputs.items()} == {"y": [0, 2], "y_copy": [0, 2]}
    assert separate_outputs(model) == ()
