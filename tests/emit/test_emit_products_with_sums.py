"""What onnxruntime makes of pairs in front of sums that stay float.

It makes a Gemm of MatMul and Add, and moves a pair past the Reshape or Transpose that follows it.
"""

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

import quantry
from onnx_oracle import from_text
from quantry.recipe import PRESETS

SUM = "a = Add(m, b) s = Add(a, x)"
MOVED = "a = Add(m, b) t = Reshape(a, to) u = Transpose<perm=[0,2,1]>(t) f = Reshape(u, back) s = Add(f, x)"


@pytest.mark.parametrize("middle", [SUM, MOVED], ids=["sum", "moved"])
@pytest.mark.parametrize("opset", [17, 21, 22])
@pytest.mark.parametrize("preset", ["XINT8", "S8S8_AAWS", "S16S8_ASWS"])
def test_sum_that_stays_float_after_a_product(preset: str, opset: int, middle: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": {opset}]> g (float[1,4,8] x) => (float[1,4,8] y)
        {{ r = Relu(x) m = MatMul(r, w) {middle} y = LayerNormalization(s, o) }}"""
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(size=shape).astype(np.float32) for name, shape in (("w", (8, 8)), ("b", (8,)), ("o", (8,)))
    }
    model = from_text(text, **weights, to=np.array([1, 8, 4]), back=np.array([1, 4, 8]))
    samples = [{"x": random.normal(size=(1, 4, 8)).astype(np.float32)} for _ in range(3)]
    recipe = PRESETS[preset].recipe
    recipe = replace(recipe, plan=replace(recipe.plan, float_residuals=True))
    written = quantry.quantize(model, samples, recipe, store=None).to_bytes()
    (expected,), (found,) = (
        ort.InferenceSession(content).run(None, samples[0]) for content in (model.SerializeToString(), written)
    )
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
