"""onnxruntime makes a Gemm of MatMul and Add, and moves a pair past the Reshape in front of it."""

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

import quantry
from onnx_oracle import from_text
from quantry.recipe import PRESETS


@pytest.mark.parametrize("opset", [17, 21, 22])
@pytest.mark.parametrize("preset", ["XINT8", "S8S8_AAWS", "S16S8_ASWS"])
def test_sum_that_stays_float_after_a_product(preset: str, opset: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["": {opset}]> g (float[1,4,8] x) => (float[1,4,8] y)
        {{ r = Relu(x) m = MatMul(r, w) a = Add(m, b) s = Add(a, x) y = LayerNormalization(s, o) }}"""
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(size=shape).astype(np.float32) for name, shape in (("w", (8, 8)), ("b", (8,)), ("o", (8,)))
    }
    model = from_text(text, **weights)
    samples = [{"x": random.normal(size=(1, 4, 8)).astype(np.float32)} for _ in range(3)]
    recipe = PRESETS[preset].recipe
    recipe = replace(recipe, plan=replace(recipe.plan, float_residuals=True))
    written = quantry.quantize(model, samples, recipe, store=None).to_bytes()
    (expected,), (found,) = (
        ort.InferenceSession(content).run(None, samples[0]) for content in (model.SerializeToString(), written)
    )
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
