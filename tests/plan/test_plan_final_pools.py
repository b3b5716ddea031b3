"""Average pools that compute the outputs stay float if the recipe asks for it."""

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text

import quantry
from quantry.graph.load import model_source
from quantry.plan import plan
from quantry.plan.after_layers import FINAL_POOL_REASON
from quantry.prepare import prepare
from quantry.recipe import PRESETS, PlanOptions, PrepareOptions


def classifier(tail: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float y)
        <float factor = {{1.01}}, int64[2] axes = {{2, 3}}> {{ a = Conv(x, w) r = Relu(a) {tail} }}"""
    shapes = {"w": (6, 3, 1, 1), "v": (4, 6, 1, 1)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return from_text(text, **{name: array for name, array in weights.items() if name == "w" or name in tail})


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        ("y = GlobalAveragePool(r)", {"GlobalAveragePool"}),
        ("p = GlobalAveragePool(r) f = Flatten(p) y = Softmax(f)", {"GlobalAveragePool", "Flatten", "Softmax"}),
        ("p = GlobalAveragePool(r) m = Mul(p, factor) y = Flatten(m)", {"GlobalAveragePool", "Mul", "Flatten"}),
        ("y = ReduceMean <axes = [2, 3]> (r)", {"ReduceMean"}),
        ("p = GlobalAveragePool(r) y = Conv(p, v)", set()),
        ("y = MaxPool <kernel_shape = [2, 2]> (r)", set()),
    ],
)
def test_pools_after_the_last_layer_stay_float(tail: str, kept: set[str]) -> None:
    model = prepare(model_source(classifier(tail)), PrepareOptions())
    found = plan(model, PlanOptions(float_final_pools=True))
    assert {entry.operator for entry in found.declined if entry.reason == FINAL_POOL_REASON} == kept
    assert "r" in found.activations
    assert not any(entry.reason == FINAL_POOL_REASON for entry in plan(model, PlanOptions()).declined)


def test_only_the_recommended_recipe_for_npus_asks_for_it() -> None:
    asking = {name for name, preset in PRESETS.items() if preset.recipe.plan.float_final_pools}
    assert asking == {name for name in PRESETS if name.startswith("RECOMMENDED-NPU")}


def test_a_pool_that_stays_float_computes_the_mean() -> None:
    """On an NPU 49 values are divided by a rounded factor; elsewhere they are not."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,7,7] x) => (float y)
        { a = Conv(x, w) r = Relu(a) y = GlobalAveragePool(r) }"""
    model = from_text(text, w=np.random.default_rng(0).standard_normal((6, 3, 1, 1)).astype(np.float32))
    samples = [{"x": np.random.default_rng(1).standard_normal((1, 3, 7, 7)).astype(np.float32)}]
    operators = {
        recipe: [node.op_type for node in quantry.quantize(model, samples, recipe, store=None).model.graph]
        for recipe in ("XINT8", "RECOMMENDED-NPU")
    }
    assert "Mul" in operators["XINT8"]
    assert "Mul" not in operators["RECOMMENDED-NPU"]
