import numpy as np
import onnx
import onnx.parser

import quantry
from quantry.graph.quant_plan import QuantPlan
from quantry.recipe import DataType, FloatBias, PlanOptions, Recipe, TensorSpec

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,8] x) => (float[2,8] y, float[2] z) {
    a = Abs (x)
    b = Exp (a)
    y = Log (b)
    z = ReduceSum <keepdims = 0> (b, axes)
}"""


def planned(*, every_operator: bool) -> QuantPlan:
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "axes"))
    spec = TensorSpec(DataType.BFLOAT16)
    recipe = Recipe(plan=PlanOptions(spec, spec, FloatBias(), every_operator=every_operator))
    return quantry.quantize(model, recipe=recipe, store=None).plan


def test_operators_that_stay_float_for_their_precision_are_quantized_on_request() -> None:
    assert [node.operator for node in planned(every_operator=False).declined] == ["Exp", "Log", "ReduceSum"]
    assert set(planned(every_operator=True).activations) == {"x", "a", "b", "y", "z"}
    assert not planned(every_operator=True).declined
