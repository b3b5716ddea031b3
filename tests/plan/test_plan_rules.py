import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from quantry.graph.load import model_source
from quantry.graph.quant_plan import FixedRange, OwnRange, QuantPlan, SharedRange
from quantry.plan import plan
from quantry.plan.rules import RULE_OF_OPERATOR
from quantry.prepare import prepare
from quantry.recipe import DataType, DerivedBias, OwnBias, PerChannel, PlanOptions, PrepareOptions, TensorSpec

ASYMMETRIC = TensorSpec(DataType.UINT8, symmetric=False)


def planned(model: onnx.ModelProto, options: PlanOptions | None = None) -> QuantPlan:
    return plan(prepare(model_source(model), PrepareOptions()), options or PlanOptions(activation=ASYMMETRIC))


def graph(
    body: str, *, inputs: str = "float[1,4,8,8] x", outputs: str = "float[1,4,8,8] y", opset: int = 17
) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def with_weights(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


@pytest.mark.parametrize(
    "operator",
    [
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Relu",
        "Clip",
        "LeakyRelu",
        "PRelu",
        "Sigmoid",
        "HardSigmoid",
        "HardSwish",
        "Tanh",
        "Gelu",
        "Softmax",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "ReduceMean",
        "Concat",
        "Split",
        "Slice",
        "Gather",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Pad",
        "Resize",
        "DepthToSpace",
        "SpaceToDepth",
        "Min",
        "Max",
        "Where",
        "LayerNormalization",
        "InstanceNormalization",
        "BatchNormalization",
        "ArgMax",
        "Expand",
        "LSTM",
        "GRU",
        "If",
        "Loop",
    ],
)
def test_operator_has_a_rule(operator: str) -> None:
    assert operator in RULE_OF_OPERATOR


@pytest.mark.parametrize(
    "operator",
    ["Relu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "LeakyRelu", "Softplus", "Erf", "GlobalAveragePool", "Abs"],
)
def test_function_of_one_tensor_has_ranges_of_its_own_on_both_sides(operator: str) -> None:
    out = "float[1,4,1,1] y" if operator == "GlobalAveragePool" else "float[1,4,8,8] y"
    result = planned(graph(f"y = {operator}(x)", outputs=out))
    assert dict(result.activations) == {"x": OwnRange(ASYMMETRIC), "y": OwnRange(ASYMMETRIC)}


@pytest.mark.parametrize(
    ("body", "out"),
    [
        ("y = Transpose<perm = [0,2,3,1]>(x)", "float[1,8,8,4] y"),
        ("y = Flatten(x)", "float[1,256] y"),
        ("s = Constant<value_ints = [1, 256]>() y = Reshape(x, s)", "float[1,256] y"),
        ("a = Constant<value_ints = [0]>() y = Squeeze(x, a)", "float[4,8,8] y"),
        ("a = Constant<value_ints = [0]>() y = Unsqueeze(x, a)", "float[1,1,4,8,8] y"),
        ("y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x)", "float[1,4,4,4] y"),
        ("y = DepthToSpace<blocksize = 2>(x)", "float[1,1,16,16] y"),
        ("y = SpaceToDepth<blocksize = 2>(x)", "float[1,16,4,4] y"),
        ("i = Constant<value_ints = [0, 2]>() y = Gather<axis = 1>(x, i)", "float[1,2,8,8] y"),
        ("b = Constant<value_ints = [0]>() e = Constant<value_ints = [2]>() y = Slice(x, b, e, e)", "float[1,4,2,8] y"),
        ("p = Constant<value_ints = [0,0,1,1,0,0,1,1]>() y = Pad(x, p)", "float[1,4,10,10] y"),
        ('r = Constant<value_floats = [1.0,1.0,2.0,2.0]>() y = Resize<mode = "nearest">(x, , r)', "float[1,4,16,16] y"),
        ("s = Constant<value_ints = [3,4,8,8]>() y = Expand(x, s)", "float[3,4,8,8] y"),
    ],
)
def test_data_movement_shares_the_scale_of_its_input(body: str, out: str) -> None:
    result = planned(graph(f"r0 = Sigmoid(x) {body.replace('(x', '(r0')}", outputs=out))
    assert result.activations["y"] == SharedRange("r0")


def test_split_outputs_all_share_and_chains_point_at_the_root() -> None:
    body = """r = Sigmoid(x) a, b = Split<axis = 1, num_outputs = 2>(r) c = Transpose<perm = [0,2,3,1]>(a)
        y = Flatten(c) z = Flatten(b)"""
    result = planned(graph(body, outputs="float[1,128] y, float[1,128] z", opset=18))
    assert {name: entry for name, entry in result.activations.items() if name in "abcyz"} == dict.fromkeys(
        ["a", "b", "c", "y", "z"], SharedRange("r")
    )


def test_movement_of_an_unquantized_tensor_is_declined_unless_forced() -> None:
    model = graph("y = Flatten(x)", outputs="float[1,256] y")
    result = planned(model)
    assert not result.activations
    assert "moves data" in result.declined[0].reason
    forced = planned(model, PlanOptions(activation=ASYMMETRIC, force_pass_through=True))
    assert forced.activations == {"x": OwnRange(ASYMMETRIC), "y": SharedRange("x")}


def test_pad_with_a_value_and_linear_resize_have_ranges_of_their_own() -> None:
    pad = (
        "p = Constant<value_ints = [0,0,1,1,0,0,1,1]>() v = Constant<value_float = 5.0>() r = Relu(x) y = Pad(r, p, v)"
    )
    assert planned(graph(pad, outputs="float[1,4,10,10] y")).activations["y"] == OwnRange(ASYMMETRIC)
    resize = 's = Constant<value_floats = [1.0,1.0,2.0,2.0]>() r = Relu(x) y = Resize<mode = "linear">(r, , s)'
    assert planned(graph(resize, outputs="float[1,4,16,16] y")).activations["y"] == OwnRange(ASYMMETRIC)


def test_softmax_output_range_is_known() -> None:
    assert planned(graph("y = Softmax(x)")).activations["y"] == FixedRange(ASYMMETRIC, 0.0, 1.0)


def test_conv_weight_is_per_output_channel_and_bias_follows_the_accumulator() -> None:
    model = with_weights(
        graph("y = Conv<pads = [1,1,1,1]>(x, w, b)", outputs="float[1,6,8,8] y"), w=(6, 4, 3, 3), b=(6,)
    )
    options = PlanOptions(activation=ASYMMETRIC, weight=TensorSpec(granularity=PerChannel()), bias=DerivedBias())
    result = planned(model, options)
    assert result.weights["w"].axis == 0
    bias = result.biases["b"]
    assert (bias.input, bias.weight) == ("x", "w")  # type: ignore[union-attr]


@pytest.mark.parametrize(("group", "axis"), [(1, 1), (2, None)])
def test_conv_transpose_is_per_channel_without_groups_only(group: int, axis: int | None) -> None:
    model = with_weights(
        graph(f"y = ConvTranspose<group = {group}>(x, w)", outputs=f"float[1,{3 * group},10,10] y"), w=(4, 3, 3, 3)
    )
    options = PlanOptions(weight=TensorSpec(granularity=PerChannel()))
    assert planned(model, options).weights["w"].axis == axis


@pytest.mark.parametrize(("trans_b", "shape", "axis"), [(0, (16, 5), 1), (1, (5, 16), 0)])
def test_gemm_channel_axis_follows_trans_b(trans_b: int, shape: tuple[int, int], axis: int) -> None:
    model = with_weights(
        graph(f"y = Gemm<transB = {trans_b}>(x, w, b)", inputs="float[2,16] x", outputs="float[2,5] y"), w=shape, b=(5,)
    )
    options = PlanOptions(weight=TensorSpec(granularity=PerChannel()), bias=OwnBias())
    result = planned(model, options)
    assert result.weights["w"].axis == axis
    assert result.biases["b"].spec == TensorSpec()  # type: ignore[union-attr]


def test_matmul_of_two_computed_tensors_is_quantized_unless_the_options_forbid_it() -> None:
    model = graph("y = MatMul(x, x)")
    assert planned(model).quantized_nodes
    declined = planned(model, PlanOptions(constant_right_operand_only=True)).declined
    assert "constant_right_operand_only" in declined[0].reason


def test_constant_operand_of_add_takes_the_activation_type() -> None:
    result = planned(with_weights(graph("y = Add(x, c)"), c=(1, 4, 1, 1)))
    assert result.weights["c"].spec == ASYMMETRIC


@pytest.mark.parametrize("activation", ["Relu(t)", "LeakyRelu(t)", "PRelu(t, s)", "Clip(t, lo, hi)"])
def test_tensor_before_a_fused_activation_is_not_quantized(activation: str) -> None:
    body = f"lo = Constant<value_float = 0.0>() hi = Constant<value_float = 6.0>() t = Conv(x, w) y = {activation}"
    model = with_weights(graph(body), w=(4, 4, 1, 1), **({"s": (4, 1, 1)} if "PRelu" in activation else {}))
    assert list(planned(model).activations) == ["x", "y"]
    apart = planned(model, PlanOptions(activation=ASYMMETRIC, fused_activations=()))
    assert list(apart.activations) == ["x", "t", "y"]


def test_tensor_before_an_activation_with_another_reader_stays_quantized() -> None:
    model = with_weights(graph("t = Conv(x, w) r = Relu(t) y = Add(r, t)"), w=(4, 4, 1, 1))
    assert "t" in planned(model).activations


def test_silu_quantizes_all_three_tensors() -> None:
    model = with_weights(graph("t = Conv(x, w) s = Sigmoid(t) y = Mul(t, s)"), w=(4, 4, 1, 1))
    assert list(planned(model).activations) == ["x", "t", "s", "y"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Exp(x)", "orders of magnitude"),
        ("y = Div(x, x)", "divisor"),
        ("m = ReduceMean<axes = [1], keepdims = 1>(x) y = Sub(x, m)", ""),
        ("y = Hardmax(x)", "no rule for operator Hardmax"),
    ],
)
def test_decline_carries_its_reason(body: str, reason: str) -> None:
    declined = planned(graph(body)).declined
    assert all(reason in entry.reason for entry in declined)
    assert bool(declined) == bool(reason)


def test_decomposed_layer_norm_keeps_its_variance_in_float() -> None:
    body = """two = Constant<value_float = 2.0>() eps = Constant<value_float = 0.00001>()
        m = ReduceMean<axes = [3]>(x) d = Sub(x, m) q = Pow(d, two) v = ReduceMean<axes = [3]>(q) e = Add(v, eps)
        r = Sqrt(e) y = Div(d, r)"""
    result = planned(graph(body))
    assert not {"q", "v", "e", "r"} & set(result.activations)


def test_integer_arithmetic_is_declined() -> None:
    result = planned(graph("y = Add(x, x)", inputs="int64[4] x", outputs="int64[4] y"))
    assert "float32" in result.declined[0].reason


def test_control_flow_and_recurrence_are_declined_with_their_reason() -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])], "b", [], [helper.make_tensor_value_info("r", 1, [1, 4])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"])], "c", [], [helper.make_tensor_value_info("n", 1, [1, 4])]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    info = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph([node], "g", [info("c", 9, []), info("x", 1, [1, 4])], [info("y", 1, [1, 4])]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    assert "body" in planned(model).declined[0].reason


def test_argmax_quantizes_its_input_only() -> None:
    result = planned(graph("y = ArgMax<axis = 1>(x)", outputs="int64[1,1,8,8] y"))
    assert list(result.activations) == ["x"]


def test_every_node_is_quantized_or_declined() -> None:
    model = with_weights(graph("t = Conv(x, w) e = Exp(t) y = Relu(e)"), w=(4, 4, 1, 1))
    result = planned(model)
    assert len(result.quantized_nodes) + len(result.declined) == 3


def test_plan_round_trips_through_its_blob() -> None:
    model = with_weights(
        graph("t = Conv(x, w, b) e = Exp(t) s = Softmax(e) y = Flatten(s)", outputs="float[1,256] y"),
        w=(4, 4, 1, 1),
        b=(4,),
    )
    result = planned(model)
    assert QuantPlan.from_blob(result.to_blob()) == result
