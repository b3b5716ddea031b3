"""The integer form against onnxruntime without optimizations, bit for bit, and what each of its conditions prevents."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantry.emit import use_exact_integers
from quantry.runtime.sessions import run_session, simulation_session

X = (1, 16, 6, 6)


def _model(body, constants, inputs="float[1,16,6,6] x"):
    """A graph whose output y is v, which the body computes from xd."""
    text = f"""<ir_version: 8, opset_import: ["" : 13]>
    g ({inputs}) => (float[] y)
    {{
        xq = QuantizeLinear(x, xs, xz)
        xd = DequantizeLinear(xq, xs, xz)
        {body}
        yq = QuantizeLinear(v, ys, yz)
        y = DequantizeLinear(yq, ys, yz)
    }}"""
    declared = "".join(f", {_type(array)} {name}" for name, array in constants.items())
    model = ir.from_onnx_text(text.replace(f"({inputs})", f"({inputs}{declared})", 1))
    for value in model.graph.inputs[1:]:
        value.const_value = ir.tensor(constants[value.name], name=value.name)
        model.graph.register_initializer(value)
    for _ in constants:
        model.graph.inputs.pop()
    model.graph.outputs[0].shape = None
    return model


def _type(array):
    names = {"float32": "float"}
    dims = ",".join(map(str, array.shape))
    return f"{names.get(array.dtype.name, array.dtype.name)}" + (f"[{dims}]" if array.ndim else "")


def _parameters(*, x=-3, y=0, xz=128, yz=128, dtype=np.uint8):
    return {
        "xs": np.array(2.0**x, np.float32),
        "xz": np.array(xz, dtype),
        "ys": np.array(2.0**y, np.float32),
        "yz": np.array(yz, dtype),
    }


def _unoptimized(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    content = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def _operators(model):
    return [node.op_type for node in model.graph]


def _assert_same_bits(make, feeds=None, seed=0):
    """Compare the integer form with the original, and return its operators."""
    generator = np.random.default_rng(seed)
    feeds = feeds or [{"x": generator.normal(0, size, X).astype(np.float32)} for size in (1, 6, 40)]
    original, form = make(), make()
    use_exact_integers(form)
    session = simulation_session(form)
    for feed in feeds:
        np.testing.assert_array_equal(run_session(session, feed)["y"], _unoptimized(original, feed))
    return _operators(form)


CONV = """
wd = DequantizeLinear(w, ws, wz)
bd = DequantizeLinear(b, bs, bz)
c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (xd, wd, bd)
v = Relu(c)
"""


def _conv(*, weight=-6, bias=-9, y=-1, yz=128, spread=40, body=CONV, dtype=np.uint8, xz=128, seed=0):
    generator = np.random.default_rng(seed)
    constants = {
        **_parameters(y=y, yz=yz, dtype=dtype, xz=xz),
        "w": np.clip(generator.normal(0, spread, (8, 16, 3, 3)), -128, 127).astype(np.int8),
        "ws": np.array(2.0**weight, np.float32),
        "wz": np.array(0, np.int8),
        "b": generator.integers(-128, 128, 8).astype(np.int8),
        "bs": np.array(2.0**bias, np.float32),
        "bz": np.array(0, np.int8),
    }
    return lambda: _model(body, constants)


@settings(max_examples=40, deadline=None)
@given(
    weight=st.integers(-9, -2),
    bias=st.integers(-14, 0),
    y=st.integers(-6, 5),
    spread=st.sampled_from([2, 20, 60, 500]),
    seed=st.integers(0, 1000),
    relu=st.booleans(),
)
def test_convolution_has_the_same_bits_with_any_power_of_two(weight, bias, y, spread, seed, relu):
    body = CONV if relu else CONV.replace("v = Relu(c)", "v = Identity(c)")
    make = _conv(weight=weight, bias=bias, y=y, spread=spread, seed=seed, body=body)
    _assert_same_bits(make, seed=seed)


def test_convolution_with_a_bias_finer_than_its_accumulator_is_an_integer_kernel():
    # Input and weight have 2**-9 together, the bias 2**-13: 16 of its steps are one of the accumulator.
    operators = _assert_same_bits(_conv(bias=-13, y=-4))
    assert "QLinearConv" in operators
    assert "Conv" not in operators


def test_a_finer_bias_turns_ties_up_and_only_ties():
    # One input channel of weight 1, output steps of four accumulator steps: every fourth input is a tie.
    constants = {
        **_parameters(x=0, y=2),
        "w": np.zeros((2, 16, 1, 1), np.int8),
        "ws": np.array(1, np.float32),
        "wz": np.array(0, np.int8),
        "b": np.array([1, 0], np.int8),
        "bs": np.array(0.25, np.float32),
        "bz": np.array(0, np.int8),
    }
    constants["w"][:, 0] = 1
    body = """
    wd = DequantizeLinear(w, ws, wz)
    bd = DequantizeLinear(b, bs, bz)
    v = Conv <kernel_shape = [1, 1]> (xd, wd, bd)
    """
    values = np.zeros((8, *X[1:]), np.float32)
    values[:, 0] = np.arange(8 * 36).reshape(8, 6, 6) - 144
    feeds = [{"x": value[None]} for value in values]
    operators = _assert_same_bits(lambda: _model(body, constants), feeds)
    assert "QLinearConv" in operators


def test_signed_activations_become_unsigned():
    form = _conv(dtype=np.int8, xz=0, yz=0)()
    use_exact_integers(form)
    operators = _assert_same_bits(_conv(dtype=np.int8, xz=0, yz=0))
    assert "QLinearConv" in operators
    assert next(node for node in form.graph if node.op_type == "QLinearConv").inputs[2].dtype == ir.DataType.UINT8


@pytest.mark.parametrize("factor", [1.1, 0.7])
def test_scales_that_are_not_powers_of_two_keep_their_pairs(factor):
    make = _conv()

    def scaled():
        model = make()
        value = model.graph.initializers["ws"]
        value.const_value = ir.tensor(np.array(2.0**-6 * factor, np.float32), name="ws")
        return model

    operators = _assert_same_bits(scaled)
    assert "Conv" in operators


def test_a_sum_that_may_exceed_24_bits_keeps_its_pairs():
    constants = {
        **_parameters(y=8),
        "w": np.full((4096, 4), 127, np.int8),
        "ws": np.array(1, np.float32),
        "wz": np.array(0, np.int8),
    }
    body = """
    wd = DequantizeLinear(w, ws, wz)
    v = MatMul(xd, wd)
    """
    feeds = [{"x": np.random.default_rng(0).normal(0, 9, (2, 4096)).astype(np.float32)}]
    operators = _assert_same_bits(lambda: _model(body, constants, "float[2,4096] x"), feeds)
    assert "MatMul" in operators
    constants["w"] = constants["w"] // 8
    operators = _assert_same_bits(lambda: _model(body, constants, "float[2,4096] x"), feeds)
    assert "QLinearMatMul" in operators


@pytest.mark.parametrize("operator", ["Add", "Mul"])
@pytest.mark.parametrize(("zero", "other", "exponent"), [(128, -3, -2), (128, -6, -4), (127, -3, -2), (0, 2, 3)])
def test_sums_and_products_of_tensors(operator, zero, other, exponent):
    body = f"""
    r = Relu(xd)
    rq = QuantizeLinear(r, os, xz)
    rd = DequantizeLinear(rq, os, xz)
    v = {operator}(xd, rd)
    """
    constants = {**_parameters(y=exponent, yz=zero), "os": np.array(2.0**other, np.float32)}
    operators = _assert_same_bits(lambda: _model(body, constants))
    # The kernels add the zero point before rounding: an odd one would turn ties the other way.
    assert (f"QLinear{operator}" in operators) is (zero % 2 == 0)


@pytest.mark.parametrize("exponent", [-9, -8, -7, -6])
@pytest.mark.parametrize("body", ["v = Sigmoid(xd)", "v = LeakyRelu <alpha = 0.1> (xd)"])
@pytest.mark.parametrize("scale", [1.0, 1.3])
def test_tables_are_exact_for_every_scale(body, exponent, scale):
    constants = _parameters(y=exponent)
    constants["ys"] = constants["ys"] * np.float32(scale)
    operators = _assert_same_bits(lambda: _model(body, constants))
    assert any(name.startswith("QLinear") for name in operators)


@pytest.mark.parametrize("x", range(-7, 3))
@pytest.mark.parametrize("alpha", [1 / 6, 0.2, 2731 / 2**14])
@pytest.mark.parametrize("y", [-7, -6, -8])
def test_hard_sigmoid(x, alpha, y):
    steps = (np.arange(256, dtype=np.float32) - 128) * np.float32(2.0**x)
    feeds = [{"x": np.resize(steps, X).astype(np.float32)}]
    body = f"v = HardSigmoid <alpha = {alpha!r}, beta = 0.5> (xd)"
    _assert_same_bits(lambda: _model(body, _parameters(x=x, y=y)), feeds)


def test_hard_sigmoid_is_replaced_where_all_256_results_agree():
    body = f"v = HardSigmoid <alpha = {1 / 6!r}, beta = 0.5> (xd)"
    operators = _assert_same_bits(lambda: _model(body, _parameters(x=-4, y=-7)))
    assert "HardSigmoid" not in operators


@pytest.mark.parametrize(
    ("body", "replaced"),
    [
        ("v = GlobalAveragePool(xd)", False),  # 36 values
        ("v = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (xd)", True),
        ("v = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 0, 0]> (xd)", False),
        ("v = AveragePool <kernel_shape = [3, 3]> (xd)", False),
    ],
)
def test_averages_over_a_power_of_two_of_values(body, replaced):
    operators = _assert_same_bits(lambda: _model(body, _parameters(y=-2)))
    assert any(name.startswith("QLinear") for name in operators) is replaced


def test_a_float_model_and_a_model_without_kernels_are_left_alone():
    model = ir.from_onnx_text('<ir_version: 8, opset_import: ["" : 13]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    assert use_exact_integers(model) == 0
    softmax = _model("v = Softmax(xd)", _parameters(y=-8, yz=0))
    assert use_exact_integers(softmax) == 0


def test_scales_that_are_computed_keep_their_pairs():
    body = """
    double = Add(xs, xs)
    a = QuantizeLinear(xd, double, xz)
    ad = DequantizeLinear(a, double, xz)
    v = Add(ad, xd)
    """
    operators = _assert_same_bits(lambda: _model(body, _parameters()))
    assert "QLinearAdd" not in operators


@pytest.mark.parametrize(
    ("attributes", "weight", "shape"),
    [
        ("kernel_shape = [3], pads = [1, 1]", (8, 16, 3), (2, 16, 9)),
        ("kernel_shape = [2, 2, 2]", (4, 3, 2, 2, 2), (1, 3, 4, 5, 6)),
        ("kernel_shape = [3, 3], group = 4, dilations = [2, 2]", (8, 4, 3, 3), (1, 16, 9, 9)),
        ("kernel_shape = [3, 3], group = 16, strides = [2, 2], pads = [0, 0, 1, 1]", (16, 1, 3, 3), (3, 16, 8, 8)),
        ('kernel_shape = [3, 3], auto_pad = "SAME_UPPER", strides = [2, 2]', (5, 7, 3, 3), (1, 7, 8, 9)),
        ("kernel_shape = [1, 1], strides = [2, 2]", (24, 32, 1, 1), (2, 32, 7, 7)),
    ],
)
def test_convolutions_of_every_shape(attributes, weight, shape):
    generator = np.random.default_rng(0)
    constants = {
        **_parameters(y=1),
        "w": generator.integers(-128, 128, weight).astype(np.int8),
        # One scale per channel, all powers of two.
        "ws": (2.0 ** generator.integers(-8, -4, weight[0])).astype(np.float32),
        "wz": np.zeros(weight[0], np.int8),
    }
    body = f"""
    wd = DequantizeLinear <axis = 0> (w, ws, wz)
    v = Conv <{attributes}> (xd, wd)
    """
    feeds = [{"x": generator.normal(0, size, shape).astype(np.float32)} for size in (1, 9)]
    dims = ",".join(map(str, shape))
    operators = _assert_same_bits(lambda: _model(body, constants, f"float[{dims}] x"), feeds)
    assert "QLinearConv" in operators


@pytest.mark.parametrize("transposed", [0, 1])
def test_matrix_product_with_a_fine_bias(transposed):
    generator = np.random.default_rng(0)
    shape = (6, 40) if transposed else (40, 6)
    constants = {
        **_parameters(y=-2),
        "w": generator.integers(-128, 128, shape).astype(np.int8),
        "ws": np.array(2.0**-6, np.float32),
        "wz": np.array(0, np.int8),
        "b": generator.integers(-128, 128, 6).astype(np.int8),
        "bs": np.array(2.0**-12, np.float32),
        "bz": np.array(0, np.int8),
    }
    body = f"""
    wd = DequantizeLinear(w, ws, wz)
    bd = DequantizeLinear(b, bs, bz)
    v = Gemm <transB = {transposed}> (xd, wd, bd)
    """
    feeds = [{"x": generator.normal(0, size, (5, 40)).astype(np.float32)} for size in (1, 9)]
    operators = _assert_same_bits(lambda: _model(body, constants, "float[5,40] x"), feeds)
    assert "QGemm" in operators
