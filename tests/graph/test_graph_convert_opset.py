import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onnx_oracle import assert_same_outputs, from_text, graph_from_text, op_types
from quantry.errors import ModelError
from quantry.graph.passes import convert_opset
from quantry.graph.save import serialize

RANDOM = np.random.default_rng(3)


def _floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


PADS = np.array([0, 0, 1, 1, 0, 0, 1, 1])

# (opset, expression of the input x of shape (2, 4, 8, 8), weights)
CASES = [
    (7, "y = Clip<min = 0.0, max = 6.0>(x)", {}),
    (9, "y = Clip<max = 0.5>(x)", {}),
    (10, "y = Clip(x)", {}),
    (11, "y = Clip(x, low, high)", {"low": np.float32(0), "high": np.float32(6)}),
    (7, 'y = Upsample<mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]>(x)', {}),
    (8, 'y = Upsample<mode = "linear", scales = [1.0, 1.0, 1.7, 2.5]>(x)', {}),
    (9, 'y = Upsample<mode = "nearest">(x, s)', {"s": np.float32([1, 1, 2.5, 3.3])}),
    (9, 'y = Upsample<mode = "linear">(x, s)', {"s": np.float32([1, 1, 2, 2])}),
    (10, 'y = Resize<mode = "nearest">(x, s)', {"s": np.float32([1, 1, 0.6, 0.7])}),
    (10, 'y = Resize<mode = "nearest">(x, s)', {"s": np.float32([1, 1, 1.7, 1])}),
    (10, 'y = Resize<mode = "linear">(x, s)', {"s": np.float32([1, 1, 0.6, 2.2])}),
    (11, 'y = Resize<mode = "cubic">(x, r, s)', {"r": np.zeros(0, np.float32), "s": np.float32([1, 1, 1.5, 0.7])}),
    (9, "u = Unsqueeze<axes = [0, 5]>(x) y = Squeeze<axes = [0, 5]>(u)", {}),
    (11, "y = Softmax<axis = 1>(x)", {}),
    (12, "y = Softmax(x)", {}),
    (12, "y = LogSoftmax<axis = -2>(x)", {}),
    (11, "y = Hardmax<axis = 2>(x)", {}),
    (12, "y = Hardmax(x)", {}),
    (11, "a, b = Split<axis = 2, split = [3, 5]>(x) y = Relu(b)", {}),
    (12, "a, b = Split<axis = 2>(x) y = Relu(b)", {}),
    (9, "y = ReduceMean<axes = [2, 3]>(x)", {}),
    (12, "y = ReduceSum<axes = [1], keepdims = 0>(x)", {}),
    (7, "y = BatchNormalization(x, a, b, m, v)", {n: np.abs(_floats(4)) for n in "abmv"}),
    (9, "y = BatchNormalization<epsilon = 0.01>(x, a, b, m, v)", {n: np.abs(_floats(4)) for n in "abmv"}),
    (9, 'y = Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1], mode = "reflect">(x)', {}),
    (10, "y = Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1], value = 1.5>(x)", {}),
    (11, 'y = Pad<mode = "edge">(x, p)', {"p": PADS}),
    (9, "y = Slice<axes = [1, 2], starts = [0, 1], ends = [2, -1]>(x)", {}),
    (9, "y, i = TopK<axis = 1, k = 2>(x)", {}),
    (10, "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)", {}),
    (7, "y = Dropout<ratio = 0.3>(x)", {}),
    (16, 'y = GridSample<mode = "bilinear">(x, g)', {"g": _floats(2, 5, 6, 2) / 2}),
    (18, "y = GroupNormalization<num_groups = 2>(x, s, b)", {"s": _floats(2), "b": _floats(2)}),
    (17, "y = ReduceMax<axes = [1]>(x)", {}),
]


def _model(opset: int, body: str, **weights: np.ndarray) -> onnx.ModelProto:
    old = opset < 9
    head = f'<ir_version: {3 if old else 8}, opset_import: ["": {opset}]> g (float[2, 4, 8, 8] x) => (float y) '
    proto = from_text(head + "{ " + body + " }", **weights)
    if old:
        # Below IR 4 every initializer is an input as well.
        proto.graph.input.extend(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in weights.items()
        )
    return proto


UPWARDS = [
    pytest.param(*case, opset, id=f"{case[0]}-{opset} {case[1][:30]}")
    for case in CASES
    for opset in (13, 21, 26)
    if opset > case[0]
]


@pytest.mark.parametrize(("current", "body", "weights", "opset"), UPWARDS)
def test_outputs_stay_the_same(current, body, weights, opset):
    proto = _model(current, body, **weights)
    model = ir.from_proto(proto)
    converted = convert_opset(model, opset)
    assert converted.opset_imports[""] == opset
    assert model.opset_imports[""] == current
    onnx.checker.check_model(onnx.load_from_string(serialize(converted)))
    assert_same_outputs(proto, converted, rtol=1e-6)


@pytest.mark.parametrize(("opset", "ir_version"), [(13, 8), (20, 8), (21, 10), (26, 10)])
def test_ir_version_goes_with_the_opset(opset, ir_version):
    model = ir.from_proto(_model(11, "y = Relu(x)"))
    assert convert_opset(model, opset).ir_version == ir_version


def test_ir_version_is_one_that_every_supported_onnxruntime_loads():
    model = graph_from_text('<ir_version: 11, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    assert convert_opset(model, 21).ir_version == 10


NAMED = """<ir_version: 7, producer_name: "maker", opset_import: ["": 11, "acme": 1]>
g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1.0, 2.0, 3.0}, float[2, 3] h> {
  [first] h = Add(x, w)
  [second] u = Unsqueeze<axes = [0]>(h)
  [third] s = Squeeze<axes = [0]>(u)
  [fourth] c = acme.Twice(s)
  [fifth] y = Clip(c, low)
}
<domain: "acme", opset_import: ["": 11]> Twice (a) => (b) { b = Ceil(a) }"""


def test_names_and_descriptions_are_kept():
    model = graph_from_text(NAMED, low=np.float32(0))
    model.metadata_props["colour"] = "blue"
    model.graph.node("first").metadata_props["line"] = "12"
    model.graph.doc_string = "about"
    converted = convert_opset(model, 13)
    names = [node.name for node in converted.graph]
    assert [name for name in names if "input" not in name] == [node.name for node in model.graph]
    assert [name for name in names if "input" in name] == ["second_input_1", "third_input_1"]
    assert {"h", "u", "s", "c", "y"} <= {value.name for node in converted.graph for value in node.outputs}
    assert list(converted.graph.initializers) == list(model.graph.initializers)
    assert converted.metadata_props == {"colour": "blue"}
    assert converted.graph.node("first").metadata_props == {"line": "12"}
    assert (converted.producer_name, converted.graph.doc_string) == ("maker", "about")


def test_functions_are_kept_where_their_operators_are_the_same():
    text = """<ir_version: 8, opset_import: ["": 14, "acme": 1]> g (float[2] x) => (float[2] y) { y = acme.Twice(x) }
              <domain: "acme", opset_import: ["": 14]> Twice (a) => (b) { b = Add(a, a) }"""
    proto = from_text(text)
    converted = convert_opset(ir.from_proto(proto), 21)
    (function,) = converted.functions.values()
    assert function.opset_imports[""] == 21
    assert op_types(converted) == ["Twice"]
    assert_same_outputs(proto, converted)


def test_functions_are_inlined_where_their_operators_changed():
    text = """<ir_version: 8, opset_import: ["": 14, "acme": 1]> g (float[2] x) => (float y) { y = acme.Peak(x) }
              <domain: "acme", opset_import: ["": 14]> Peak (a) => (b) { n = Neg(a) b = ReduceMax<axes = [0]>(n) }"""
    proto = from_text(text)
    converted = convert_opset(ir.from_proto(proto), 21)
    assert not converted.functions
    assert "ReduceMax" in op_types(converted)
    assert_same_outputs(proto, converted)


def test_subgraphs_are_converted():
    text = """<ir_version: 8, opset_import: ["": 11]> g (float[2, 3] x, bool c) => (float y) { y = If(c)<
        then_branch = t () => (float p) { p = Softmax<axis = 0>(x) },
        else_branch = e () => (float q) { u = Unsqueeze<axes = [0]>(w) q = Add(x, u) }> }"""
    proto = from_text(text, w=_floats(3))
    converted = convert_opset(ir.from_proto(proto), 21)
    for seed in range(4):
        assert_same_outputs(proto, converted, rtol=1e-6, seed=seed)


def test_large_weights_pass_by_the_converter():
    weight = _floats(200, 200)
    proto = from_text(
        '<ir_version: 8, opset_import: ["": 12]> g (float[1, 200] x) => (float[1, 200] y) { y = MatMul(x, w) }',
        w=weight,
    )
    model = ir.from_proto(proto)
    converted = convert_opset(model, 21)
    assert converted.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value
    assert_same_outputs(proto, converted)


def test_same_opset_gives_a_copy():
    model = ir.from_proto(_model(13, "y = Relu(x)"))
    copy = convert_opset(model, 13)
    assert copy is not model
    assert serialize(copy) == serialize(model)


@pytest.mark.parametrize("opset", [12, 27])
def test_opset_out_of_reach(opset):
    with pytest.raises(ModelError, match=f"only be raised, and to at most 26, got 13 to {opset}"):
        convert_opset(ir.from_proto(_model(13, "y = Relu(x)")), opset)


def test_operator_that_the_converter_does_not_know():
    with pytest.raises(ModelError, match=r"must convert from opset 11 to 13, got: .*Imaginary"):
        convert_opset(ir.from_proto(_model(11, "y = Imaginary(x)")), 13)


def test_group_norm_with_an_unknown_number_of_channels():
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[n, c, 8] x) => (float y) '
    text += "{ y = GroupNormalization<num_groups = 2>(x, s, s) }"
    with pytest.raises(ModelError, match="known number of channels to be raised to opset 21"):
        convert_opset(graph_from_text(text, s=_floats(2)), 21)
