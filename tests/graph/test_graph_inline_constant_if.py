import numpy as np
import pytest

from onnx_oracle import assert_same_outputs, graph_from_text, op_types
from quantry.graph.passes.inline_constant_if import inline_constant_if
from quantry.graph.passes.remove_identities import remove_identities
from quantry.graph.passes.tidy import name_nodes

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) '
BRANCHES = """then_branch = t () => (float[2] p) <float[2] k = {1.0, 2.0}> { a = Relu(x) p = Add(a, k) },
              else_branch = e () => (float[2] q) <float[2] k = {3.0, 4.0}> { a = Neg(x) q = Mul(a, k) }"""


def _check(text: str, left: list[str], **weights: np.ndarray):
    model = graph_from_text(text, **weights)
    name_nodes(model)
    before = model.clone()
    notes = inline_constant_if(model)
    assert_same_outputs(before, model)
    remove_identities(model)
    assert_same_outputs(before, model)
    assert op_types(model) == left
    return model, notes


@pytest.mark.parametrize(("condition", "left"), [(True, ["Relu", "Add"]), (False, ["Neg", "Mul"])])
def test_taken_branch_replaces_the_node(condition, left):
    model, notes = _check(HEAD + f"{{ y = If(c)<{BRANCHES}> }}", left, c=np.array(condition))
    assert tuple(map(str, notes)) == ("inlined 1 If nodes with a constant condition",)
    assert model.graph.outputs[0].name == "y"


def test_two_branches_with_the_same_names():
    body = f"{{ m = If(c)<{BRANCHES}> n = If(d)<{BRANCHES}> y = Add(m, n) }}"
    left = ["Relu", "Add", "Neg", "Mul", "Add"]
    model, _ = _check(HEAD + body, left, c=np.ones(1, bool), d=np.zeros(1, bool))
    assert sorted(model.graph.initializers) == ["If_0_k", "If_5_k", "c", "d"]


def test_nested_condition():
    inner = f"then_branch = t () => (float[2] p) {{ i = If(c)<{BRANCHES}> p = Abs(i) }}"
    body = f"{{ y = If(c)<{inner}, else_branch = e () => (float[2] q) {{ q = Neg(x) }}> }}"
    _check(HEAD + body, ["Relu", "Add", "Abs"], c=np.ones((), bool))


def test_branch_that_passes_a_value_on():
    body = """{ r = Relu(x) y = If(c)<then_branch = t () => (float[2] p) { p = Identity(r) },
                                      else_branch = e () => (float[2] q) { q = Neg(x) }> }"""
    _check(HEAD + body, ["Relu"], c=np.ones((), bool))


def test_two_outputs_one_of_them_unused():
    text = (
        HEAD
        + """{ y, z = If(c)<then_branch = t () => (float[2] p, float[2] p2) { p = Relu(x) p2 = Abs(x) },
                                    else_branch = e () => (float[2] q, float[2] q2) { q = Neg(x) q2 = Neg(x) }> }"""
    )
    _check(text, ["Relu", "Abs"], c=np.ones((), bool))


def test_condition_that_is_computed_stays():
    text = HEAD.replace("float[2] x", "float[2] x, bool c") + f"{{ y = If(c)<{BRANCHES}> }}"
    assert inline_constant_if(graph_from_text(text)) == ()
