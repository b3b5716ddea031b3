import onnx.parser

from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.plan import plan
from quantry.plan.stay_float import FINAL_JOIN_REASON as REASON
from quantry.prepare import prepare
from quantry.recipe import PlanOptions, PrepareOptions

DETECTOR = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,8] x) => (float[1,8,8] y) {
    [boxes] b = Relu(x)
    [scores] s = Sigmoid(x)
    [shape_b] c = Transpose<perm = [0,2,1]>(b)
    [shape_s] t = Transpose<perm = [0,2,1]>(s)
    [join] j = Concat<axis = 2>(c, t)
    [last] y = Transpose<perm = [0,1,2]>(j)
}
"""
INNER = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] x) => (float[1,8] y) {
    [one] a = Relu(x)
    [two] b = Sigmoid(x)
    [join] j = Concat<axis = 1>(a, b)
    [three] y = Tanh(j)
}
"""
CLASSIFIER = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,8] x) => (float[1,32] y) {
    [one] a = Relu(x)
    [flat] y = Flatten(a)
}
"""


def planned(text: str, options: PlanOptions | None = None) -> QuantPlan:
    model = prepare(model_source(onnx.parser.parse_model(text)), PrepareOptions(remove_identities=False))
    return plan(model, options or PlanOptions())


def test_join_at_the_end_stays_float_and_its_parts_keep_their_scales() -> None:
    result = planned(DETECTOR)
    assert set(result.activations) == {"x", "b", "s"}
    assert {entry.node for entry in result.declined if entry.reason == REASON} == {"shape_b", "shape_s", "join", "last"}


def test_join_is_quantized_on_request() -> None:
    assert "y" in planned(DETECTOR, PlanOptions(float_final_joins=False)).activations


def test_join_that_something_computes_on_is_quantized() -> None:
    assert not planned(INNER).declined


def test_movement_at_the_end_without_a_join_is_quantized() -> None:
    assert not planned(CLASSIFIER).declined
