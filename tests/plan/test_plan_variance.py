"""Variances and post-processing stay float, with a reason."""

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text

import quantry
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.plan import plan
from quantry.plan.after_layers import POST_PROCESSING_REASON as DECODES
from quantry.plan.stay_float import VARIANCE_REASON as VARIANCE
from quantry.prepare import prepare
from quantry.recipe import PlanOptions, PrepareOptions, Recipe

NORMALIZATIONS = {
    "squares": """m = ReduceMean <axes = [-1]> (h) q = Mul(h, h) e = ReduceMean <axes = [-1]> (q) mm = Mul(m, m)
        v = Sub(e, mm) ve = Add(v, eps) s = Sqrt(ve) c = Sub(h, m) n = Div(c, s)""",
    "centred": """m = ReduceMean <axes = [-1]> (h) c = Sub(h, m) q = Pow(c, two) e = ReduceMean <axes = [-1]> (q)
        ve = Add(e, eps) s = Sqrt(ve) n = Div(c, s)""",
    "root mean square": """q = Pow(h, two) e = ReduceMean <axes = [-1]> (q) ve = Add(e, eps) s = Pow(ve, minus)
        n = Mul(h, s)""",
}


def normalized(body: str) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[4,16] x) => (float[4,3] y)
        <float eps = {{1e-5}}, float two = {{2}}, float minus = {{-0.5}}>
        {{ h = Gemm(x, w) {body} y = Gemm(n, u) }}"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in {"w": (16, 32), "u": (32, 3)}.items():
        array = random.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def planned(proto: onnx.ModelProto, options: PlanOptions | None = None) -> QuantPlan:
    return plan(prepare(model_source(proto), PrepareOptions()), options or PlanOptions())


@pytest.mark.parametrize("case", NORMALIZATIONS)
def test_all_from_the_square_to_the_root_stays_float(case: str) -> None:
    found = planned(normalized(NORMALIZATIONS[case]))
    assert not {"q", "e", "v", "ve", "mm"} & found.activations.keys()
    assert "h" in found.activations
    assert any(declined.reason == VARIANCE for declined in found.declined)


def test_a_decomposed_normalization_survives_quantization() -> None:
    random = np.random.default_rng(1)
    data = [{"x": (random.standard_normal((4, 16)) + 6).astype(np.float32)} for _ in range(4)]
    result = quantry.quantize(normalized(NORMALIZATIONS["squares"]), data, Recipe(), store=None)
    assert result.evaluation.metrics["sqnr"].value > 20


def test_a_root_without_a_square_is_no_variance() -> None:
    found = planned(normalized("a = Abs(h) b = Add(a, eps) s = Sqrt(b) n = Mul(h, s)"))
    assert not any(declined.reason == VARIANCE for declined in found.declined)


def detector(body: str) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,3,20,20] x) => (float y)
        {{ a = Conv(x, w) r = Relu(a) b = Conv(r, v) {body} }}"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in {"w": (4, 3, 1, 1), "v": (2, 4, 1, 1), "grid": (1, 2, 20, 20), "factor": (1, 2, 1, 1)}.items():
        array = random.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


@pytest.mark.parametrize(
    ("body", "float_nodes"),
    [
        ("c = Add(b, grid) y = Mul(c, factor)", {"Add", "Mul"}),
        ("e = Exp(b) y = Mul(e, factor)", {"Exp", "Mul"}),
        ("c = Mul(b, factor) y = Sigmoid(c)", set()),
        ("c = Add(b, grid) d = Relu(c) e = Conv(d, w2) y = Sigmoid(e)", set()),
    ],
)
def test_decoding_after_the_last_layer_stays_float(body: str, float_nodes: set[str]) -> None:
    proto = detector(body)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 2, 1, 1), np.float32), "w2"))
    declined = {entry.operator for entry in planned(proto).declined if entry.reason == DECODES}
    assert declined == float_nodes
    assert not {
        entry.operator
        for entry in planned(proto, PlanOptions(float_post_processing=False)).declined
        if entry.reason == DECODES
    }


def test_grids_computed_from_the_shape_of_the_image_mark_decoding_too() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,H,W] x) => (float[1,2,H,W] y)
        <float one = {1}, float[1,2,1,1] factor = {8, 16}>
        { a = Conv(x, w) r = Relu(a) b = Conv(r, v) s = Shape(b) grid = Expand(one, s) c = Add(b, grid)
          y = Mul(c, factor) }"""
    proto = from_text(text, w=np.ones((4, 3, 1, 1), np.float32), v=np.ones((2, 4, 1, 1), np.float32))
    declined = {entry.operator for entry in planned(proto).declined if entry.reason == DECODES}
    assert {"Add", "Mul"} <= declined
    assert "Conv" not in declined


@pytest.mark.parametrize("learned", [False, True])
def test_mean_of_a_distribution_belongs_to_the_decoding(learned: bool) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,20,20] x) => (float[1,1,20,20] y)
        { a = Conv(x, w) r = Relu(a) b = Conv(r, v) p = Softmax <axis = 1> (b) d = Conv(p, bins) y = Add(d, grid) }"""
    bins = np.arange(8, dtype=np.float32)
    if learned:
        bins[3] += 0.5
    arrays = {"w": np.ones((4, 3, 1, 1)), "v": np.ones((8, 4, 1, 1)), "grid": np.ones((1, 1, 20, 20))}
    proto = from_text(
        text, bins=bins.reshape(1, 8, 1, 1), **{name: array.astype("f") for name, array in arrays.items()}
    )
    declined = {entry.operator for entry in planned(proto).declined if entry.reason == DECODES}
    assert declined == ({"Add"} if learned else {"Softmax", "Conv", "Add"})


def transformer() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,5,8] x) => (float[2,5,4] y) {
        n = LayerNormalization(x, s, b) f = MatMul(n, w) g = Add(f, c) h = Add(g, n) m = LayerNormalization(h, t, d)
        y = MatMul(m, v) }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    shapes = {"s": (8,), "b": (8,), "w": (8, 8), "c": (8,), "t": (8,), "d": (8,), "v": (8, 4)}
    for name, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32)
        # Channel 3 is an outlier that the normalization's factor makes small again.
        array[..., 3] *= {"c": 400.0, "t": 0.01}.get(name, 1.0)
        array *= name != "d"
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def test_sums_before_a_normalization_stay_float_on_request() -> None:
    plain, kept = (planned(transformer(), PlanOptions(float_residuals=wanted)) for wanted in (False, True))
    assert {"f", "g", "h"} <= plain.activations.keys()
    assert not {"f", "g", "h"} & kept.activations.keys()
    assert {"n", "m", "y"} <= kept.activations.keys()
    assert {"w", "v"} <= kept.weights.keys()


def test_outliers_before_a_normalization_cost_nothing_then() -> None:
    random = np.random.default_rng(1)
    data = [{"x": random.standard_normal((2, 5, 8)).astype(np.float32)} for _ in range(4)]
    scores = [
        quantry.quantize(transformer(), data, Recipe(plan=PlanOptions(float_residuals=wanted)), store=None)
        .evaluation.metrics["sqnr"]
        .value
        for wanted in (False, True)
    ]
    assert scores[1] > scores[0] + 6


@pytest.mark.parametrize("moved", [False, True])
def test_what_only_moves_such_a_sum_stays_float_too(moved: bool) -> None:
    proto = transformer()
    reshape = onnx.helper.make_node("Reshape", ["h", "flat"], ["r"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([10, 8]), "flat"))
    product = onnx.helper.make_node("MatMul", ["r", "v"], ["z"])
    proto.graph.node.extend([reshape, product])
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [10, 4]))
    kept = planned(proto, PlanOptions(float_residuals=True, force_pass_through=moved))
    assert "h" not in kept.activations
    assert {"r", "z"} <= kept.activations.keys()
    assert any(entry.operator == "Reshape" for entry in kept.declined)
