import numpy as np
import pytest

from onnx_oracle import assert_same_outputs, graph_from_text, op_types
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.remove_identities import remove_identities
from quantry.graph.passes.tidy import name_nodes

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y) '


def _check(text: str, left: list[str], **weights: np.ndarray):
    model = graph_from_text(text, **weights)
    name_nodes(model)
    infer_shapes(model)
    before = model.clone()
    remove_identities(model)
    assert op_types(model) == left
    assert_same_outputs(before, model)
    return model


@pytest.mark.parametrize(
    "node",
    [
        "Identity(a)",
        "Cast<to = 1>(a)",
        "Transpose<perm = [0, 1]>(a)",
        "Dropout(a)",
        "Dropout(a, ratio)",
        "Dropout(a, ratio, no)",
        "Pad(a, no_pads)",
        "Reshape(a, same)",
        "Reshape(a, copied)",
        "Reshape(a, inferred)",
        "Concat<axis = 0>(a)",
        "Sum(a)",
        "Max(a)",
        "Min(a)",
        "Mean(a)",
    ],
)
def test_node_that_changes_nothing_goes(node):
    weights = {
        "ratio": np.float32(0.5),
        "no": np.zeros((), bool),
        "no_pads": np.zeros(4, np.int64),
        "same": np.array([2, 3]),
        "copied": np.array([0, 3]),
        "inferred": np.array([2, -1]),
    }
    _check(HEAD + f"{{ a = Relu(x) b = {node} y = Neg(b) }}", ["Relu", "Neg"], **weights)
    model = _check(HEAD + f"{{ a = Relu(x) y = {node} }}", ["Relu"], **weights)
    assert model.graph.outputs[0].name == "y"


@pytest.mark.parametrize(
    "node",
    [
        "Transpose<perm = [1, 0]>(a)",
        "Transpose(a)",
        "Cast<to = 7>(a)",
        "Pad(a, pads)",
        "Reshape(a, other)",
        "Concat<axis = 0>(a, a)",
        "Sum(a, a)",
    ],
)
def test_node_that_changes_something_stays(node):
    text = HEAD.replace("float[2, 3] y", "int64[2, 3] y" if "to = 7" in node else "float y")
    weights = {"pads": np.array([0, 1, 0, 0]), "other": np.array([3, 2])}
    _check(text + f"{{ a = Relu(x) y = {node} }}", ["Relu", node.partition("<")[0].partition("(")[0]], **weights)


def test_dropout_with_a_mask_that_is_read_stays():
    text = HEAD.replace("float[2, 3] y", "float[2, 3] y, bool[2, 3] m")
    _check(text + "{ a = Relu(x) y, m = Dropout(a) }", ["Relu", "Dropout"])


def test_dropout_with_a_mask_that_no_one_reads_goes():
    _check(HEAD + "{ a = Relu(x) b, m = Dropout(a) y = Neg(b) }", ["Relu", "Neg"])


def test_dropout_whose_training_mode_is_an_input_stays():
    text = HEAD.replace("float[2, 3] x", "float[2, 3] x, bool t") + "{ a = Relu(x) b = Dropout(a, r, t) y = Neg(b) }"
    model = graph_from_text(text, r=np.float32(0))
    remove_identities(model)
    assert "Dropout" in op_types(model)


def test_between_graph_input_and_graph_output_stays():
    _check(HEAD + "{ y = Identity(x) }", ["Identity"])


def test_between_initializer_and_graph_output_stays():
    _check(HEAD + "{ y = Identity(w) }", ["Identity"], w=np.ones((2, 3), np.float32))


def test_second_name_of_a_graph_output_stays():
    text = HEAD.replace("float[2, 3] y", "float[2, 3] a, float[2, 3] y")
    _check(text + "{ a = Relu(x) y = Identity(a) }", ["Relu", "Identity"])


def test_chain_of_identities_goes():
    model = _check(HEAD + "{ a = Identity(x) b = Identity(a) c = Relu(b) d = Identity(c) y = Identity(d) }", ["Relu"])
    assert model.graph.node(0).inputs[0].name == "x"


def test_reshape_with_two_open_axes_stays_where_it_may_change():
    text = HEAD.replace("2, 3", "n, m") + "{ a = Relu(x) b = Reshape(a, s) y = Neg(b) }"
    _check(text, ["Relu", "Reshape", "Neg"], s=np.array([-1, 2]))


def test_reshape_of_a_batch_to_itself_goes():
    text = HEAD.replace("2, 3", "n, 3") + "{ a = Relu(x) b = Reshape(a, s) y = Neg(b) }"
    _check(text, ["Relu", "Neg"], s=np.array([-1, 3]))


def test_identity_that_a_subgraph_reads():
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) { a = Identity(x)
        y = If(c)<
        then_branch = t () => (float[2] p) { p = Identity(a) }, else_branch = e () => (float[2] q) { q = Neg(a) }> }"""
    model = graph_from_text(text)
    before = model.clone()
    remove_identities(model)
    # The Identity inside gives the branch its output and stays.
    assert op_types(model) == ["If"]
    for seed in range(4):
        assert_same_outputs(before, model, seed=seed)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "goes"),
    [
        pytest.param([0], [2**63 - 1], [0], [1], True, id="to the end"),
        pytest.param([0, 0], [10**9, 3], [0, 1], [1, 1], True, id="whole axes"),
        pytest.param([-3], [3], [1], [1], True, id="from the start, counted backwards"),
        pytest.param([1], [2**63 - 1], [1], [1], False, id="not from the start"),
        pytest.param([0], [2], [1], [1], False, id="not to the end"),
        pytest.param([0], [2**63 - 1], [1], [2], False, id="steps"),
        pytest.param([-1], [-(2**63)], [1], [-1], False, id="backwards"),
        pytest.param([0], [-1], [1], [1], False, id="without the last"),
    ],
)
def test_slice_goes_where_it_takes_everything(starts, ends, axes, steps, goes):
    text = HEAD.replace("float[2, 3]", "float[n, 3]").replace("=> (float[n, 3] y)", "=> (float y)")
    weights = {"b": np.array(starts), "e": np.array(ends), "a": np.array(axes), "s": np.array(steps)}
    left = ["Relu", "Neg"] if goes else ["Relu", "Slice", "Neg"]
    _check(text + "{ h = Relu(x) k = Slice(h, b, e, a, s) y = Neg(k) }", left, **weights)


def test_slice_of_a_static_shape_without_axes_goes():
    _check(
        HEAD + "{ h = Relu(x) k = Slice(h, b, e) y = Neg(k) }", ["Relu", "Neg"], b=np.array([0, 0]), e=np.array([2, 3])
    )
