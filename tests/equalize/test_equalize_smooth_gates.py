"""SmoothQuant around constants that are rounded themselves: squeeze-and-excitation, scaled and shifted channels."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text

import quantry
from quantry.recipe import PRESETS, TuneOptions

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,12,12] x) => (float[1,6,12,12] y)'
BODIES = {
    "squeeze and excitation": """p = GlobalAveragePool(r) s = Conv(p, squeeze) t = Relu(s) e = Conv(t, excite)
        h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (e) m = Mul(r, h)""",
    "one factor": "m = Mul(r, two)",
    "a factor per channel": "m = Mul(r, factors)",
    "a shift per channel": "m = Add(r, factors)",
    "pooled": "p = ReduceMean <axes = [2, 3]> (r) m = Mul(p, factors)",
}
TWO = np.array(2, np.float32)


def block(body: str) -> onnx.ModelProto:
    """Return a block whose channels have very different ranges, so that smoothing has something to gain."""
    random = np.random.default_rng(2)
    spread = np.exp2(random.uniform(-7, 4, 32)).astype(np.float32)
    weights = {"squeeze": (8, 32, 1, 1), "excite": (32, 8, 1, 1)}
    drawn = {name: random.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    first = random.standard_normal((32, 3, 1, 1)).astype(np.float32) * spread[:, None, None, None]
    last = random.standard_normal((6, 32, 1, 1)).astype(np.float32) / spread[None, :, None, None]
    factors = random.uniform(0.5, 2, (1, 32, 1, 1)).astype(np.float32)
    used = {name: array for name, array in {**drawn, "two": TWO, "factors": factors}.items() if name in body}
    text = f"{HEAD} {{ a = Conv(x, first) r = Relu(a) {body} y = Conv(m, last) }}"
    return from_text(text, first=first, last=last, **used)


@pytest.mark.parametrize("preset", ["RECOMMENDED-NPU", "RECOMMENDED-CPU"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_smoothing_is_never_worse_than_none(body: str, preset: str) -> None:
    random = np.random.default_rng(3)
    data = [{"x": random.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(6)]
    best = PRESETS[preset].recipe
    # Joint equalization would do without smoothing what smoothing does here.
    recipe = replace(best, equalize=replace(best.equalize, joint=None), tune=TuneOptions())
    plain = replace(recipe, equalize=replace(recipe.equalize, smooth=None))
    smoothed, without = (
        quantry.quantize(block(body), data, wanted, store=None).evaluation.metrics["sqnr"].value
        for wanted in (recipe, plain)
    )
    assert smoothed > without - 0.5
    if "factor" in body or "two" in body:
        assert smoothed > without + 3
