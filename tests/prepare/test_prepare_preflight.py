import numpy as np
import onnx
import onnx_ir as ir
import pytest

import quantry
from onnx_oracle import from_text, graph_from_text
from quantry.errors import ModelError
from quantry.graph.load import model_source
from quantry.prepare import prepare
from quantry.prepare.preflight import check_model
from quantry.recipe import PrepareOptions


def _model(body: str, head: str = '<ir_version: 8, opset_import: ["": 17]>', **weights: np.ndarray) -> ir.Model:
    return graph_from_text(f"{head} g (float[n, 4] x, float[1, 4] z) => (float[n, 4] y) {body}", **weights)


def _refusal(model: ir.Model) -> str:
    with pytest.raises(ModelError) as caught:
        check_model(model, "toy.onnx")
    assert "toy.onnx" in str(caught.value)
    return str(caught.value)


def test_sound_model_passes_and_its_open_axes_are_noted():
    assert tuple(map(str, check_model(_model("{ y = Add(x, z) }"), "toy.onnx"))) == (
        "axes of the inputs without a fixed length: x[0]=n",
    )


def test_static_model_has_no_notes():
    model = graph_from_text('<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Relu(x) }')
    assert check_model(model, "toy.onnx") == ()


def test_no_nodes():
    model = graph_from_text('<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] x) { }')
    assert "must have nodes, got an empty graph 'g'" in _refusal(model)


@pytest.mark.parametrize("version", [2, 14, 99])
def test_ir_version_out_of_the_window(version):
    head = f'<ir_version: {version}, opset_import: ["": 17]>'
    assert f"IR version must be 3 to 13, got {version}; export" in _refusal(_model("{ y = Relu(x) }", head))


@pytest.mark.parametrize("opset", [6, 27, 99])
def test_opset_out_of_the_window(opset):
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    assert f"opset must be 7 to 26, which onnxruntime runs, got {opset}; export" in _refusal(
        _model("{ y = Relu(x) }", head)
    )


def test_standard_opset_not_imported():
    message = _refusal(_model("{ y = com.microsoft.Gelu(x) }", '<ir_version: 8, opset_import: ["com.microsoft": 1]>'))
    assert "must import the standard operator set, got {'com.microsoft': 1}" in message


def test_standard_domain_by_its_long_name():
    text = '<ir_version: 8, opset_import: ["ai.onnx": 17]> g (float[2] x) => (float[2] y) { y = ai.onnx.Relu(x) }'
    assert prepare(model_source(from_text(text)), PrepareOptions()).opset == 17


@pytest.mark.parametrize(
    "body",
    [
        "{ s = Identity(x) y = com.vai.quantize.VAIQuantizeLinear(s) }",
        "{ y = com.vai.quantize.FixNeuron(x) }",
        "{ y = com.microsoft.MatMulNBits(x) }",
        "{ y = com.microsoft.QLinearAdd(x) }",
        "{ y = DequantizeLinear(x, z) }",
        "{ y, a, b = DynamicQuantizeLinear(x) }",
        "{ y = QLinearConv(x) }",
        """{ c = Cast<to = 9>(z) y = If(c)<then_branch = t () => (float p) { p = QuantizeLinear(x, z) },
             else_branch = e () => (float q) { q = Neg(x) }> }""",
    ],
)
def test_model_that_is_already_quantized(body):
    message = _refusal(_model(body))
    assert "must be a float model, got one that is already quantized" in message
    assert "pass the original float model" in message


def test_unknown_domain_without_function():
    message = _refusal(_model("{ y = acme.Fancy(x) }", '<ir_version: 8, opset_import: ["": 17, "acme": 1]>'))
    assert "must have a model-local function, got acme.Fancy without one" in message


def test_unknown_domain_with_function():
    text = """<ir_version: 8, opset_import: ["": 17, "acme": 1]> g (float[4] x) => (float[4] y) { y = acme.Fancy(x) }
    <domain: "acme", opset_import: ["": 17]> Fancy (a) => (b) { b = Relu(a) }"""
    assert check_model(graph_from_text(text), "toy.onnx") == ()


def test_misspelt_operator():
    message = _refusal(_model("{ [n] y = Rellu(x) }"))
    assert "must exist in opset 17, got 'Rellu', which no opset has; did you mean 'Relu'?; node 'n'" in message


def test_misspelt_operator_inside_a_function():
    text = """<ir_version: 8, opset_import: ["": 17, "acme": 1]> g (float[4] x) => (float[4] y) { y = acme.Fancy(x) }
    <domain: "acme", opset_import: ["": 17]> Fancy (a) => (b) { b = Rellu(a) }"""
    assert "did you mean 'Relu'" in _refusal(graph_from_text(text))


def test_operator_of_a_later_opset():
    assert "got 'Gelu', which only later opsets have" in _refusal(_model("{ y = Gelu(x) }"))


def test_operator_that_was_removed():
    assert "got 'Upsample', which was removed before" in _refusal(_model("{ y = Upsample(x, z) }"))


def test_undefined_tensor():
    message = _refusal(_model("{ hidden = Relu(x) [n] y = Add(hiden, x) }"))
    assert "must be defined, got 'hiden'; did you mean 'hidden'?; input of node 'n'" in message


def test_undefined_tensor_in_a_subgraph():
    message = _refusal(
        _model(
            "{ c = Cast<to = 9>(z) y = If(c)<then_branch = t () => (float p) { p = Relu(ghost) },"
            " else_branch = e () => (float q) { q = Neg(x) }> }"
        )
    )
    assert "got 'ghost'" in message


def test_output_that_nothing_computes():
    assert "every output must be computed, got 'y'" in _refusal(_model("{ q = Relu(x) }"))


def test_cycle():
    proto = from_text(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y){ a = Add(x, b) b = Relu(a) y = Neg(b) }'
    )
    with pytest.raises(ModelError, match="no cycles"):
        prepare(model_source(proto), PrepareOptions())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weight_that_is_not_finite(bad):
    weight = np.ones((4, 4), np.float32)
    weight[1, 2] = bad
    message = _refusal(_model("{ y = MatMul(x, weight) }", weight=weight))
    counts = "1 NaN and 0 infinite" if np.isnan(bad) else "0 NaN and 1 infinite"
    assert f"every weight must be finite, got {counts} of 16 values; tensor 'weight'" in message


def test_constant_node_that_is_not_finite():
    proto = from_text(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) '
        "{ c = Constant<value = float[1] {1.0}>() y = Mul(x, c) }"
    )
    proto.graph.node[0].attribute[0].t.CopyFrom(_tensor(np.array([np.nan], np.float32)))
    assert "1 NaN and 0 infinite of 1 values; tensor 'c'" in _refusal(ir.from_proto(proto))


def _tensor(array):
    from onnx import numpy_helper

    return numpy_helper.from_array(array)


def test_infinite_mask_is_only_noted():
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    notes = check_model(
        _model("{ a = MatMul(x, w) y = Add(a, mask) }", w=np.eye(4, dtype=np.float32), mask=mask), "toy"
    )
    assert str(notes[-1]) == "constant mask has 6 infinite values; it is used as a limit or a mask"


def test_nan_in_a_mask_raises():
    assert "1 NaN" in _refusal(_model("{ y = Add(x, mask) }", mask=np.array([0, 0, 0, np.nan], np.float32)))


@pytest.mark.parametrize(("dtype", "name"), [(np.float64, "DOUBLE")])
def test_float64_model(dtype, name):
    proto = from_text(
        '<ir_version: 8, opset_import: ["": 17]> g (double[1, 2] x) => (double[1, 2] y) { y = MatMul(x, w) }',
        w=np.eye(2, dtype=dtype),
    )
    with pytest.raises(ModelError, match=f"must compute in float32, got {name}; export it in float32; tensor 'x'"):
        prepare(model_source(proto), PrepareOptions())


def test_bfloat16_model():
    text = '<ir_version: 8, opset_import: ["": 17]> g (bfloat16[1, 2] x) => (bfloat16[1, 2] y) { y = Add(x, x) }'
    with pytest.raises(ModelError, match="got BFLOAT16; export it in float32"):
        prepare(model_source(from_text(text)), PrepareOptions())


def test_float64_scalar_next_to_float32_is_no_error():
    proto = from_text(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { c = Cast<to = 1>(k) y = Mul(x, c) }',
        k=np.float64(2),
    )
    assert prepare(model_source(proto), PrepareOptions()).opset == 17


def test_float16_model_without_the_request():
    text = '<ir_version: 8, opset_import: ["": 17]> g (float16[2] x) => (float16[2] y) { y = Relu(x) }'
    with pytest.raises(ModelError, match="got a float16 model; set float16_to_float32=True"):
        prepare(model_source(from_text(text)), PrepareOptions())


@pytest.mark.parametrize("opset", [6, 27])
def test_requested_opset_out_of_reach(opset):
    proto = from_text('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    options = PrepareOptions(opset=opset)
    if opset < 17:
        assert prepare(model_source(proto), options).opset == 17
    else:
        with pytest.raises(ModelError, match="at most 26, got 17 to 27"):
            prepare(model_source(proto), options)


def test_a_loop_without_a_number_of_rounds_names_the_node() -> None:
    # onnxruntime ends the process when it runs this model.
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,8] x) => (float[1,8] y) <int64[0] n = {}, bool t = {1}> {
        y = Loop (n, t, x) <body = b (int64 i, bool ci, float[1,8] vi) => (bool co, float[1,8] vo)
            { co = Identity (ci) vo = Relu (vi) }> }"""
    with pytest.raises(ModelError, match="what Loop decides by must be one value, got 'n' with 0"):
        quantry.quantize(onnx.parser.parse_model(text), None, "XINT8", store=None)
