"""SmoothQuant through Clip(0, 6): channels below the bound are rescaled, and what is cut off stays cut off."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.onnx_oracle import from_text, run

import quantry
from quantry.equalize.smooth_factors import within_bound
from quantry.recipe import PRESETS, EvaluateOptions, TuneOptions

BEST = PRESETS["RECOMMENDED-NPU"].recipe
# Joint equalization would do without smoothing what smoothing does here.
NPU = replace(BEST, equalize=replace(BEST.equalize, joint=None), tune=TuneOptions(), evaluate=EvaluateOptions(guard=0))
PLAIN = replace(NPU, equalize=replace(NPU.equalize, smooth=None))
BODIES = {
    "directly": "d = Conv <group = 16, pads = [1,1,1,1]> (c, depthwise)",
    "after padding": "p = Pad(c, pads) d = Conv <group = 16> (p, depthwise)",
    "after a maximum": "p = MaxPool <kernel_shape = [2,2]> (c) d = Conv <group = 16, pads = [1,1,1,1]> (p, depthwise)",
}


def separable(body: str) -> onnx.ModelProto:
    """Return a block of MobileNet in which weak channels are read by large weights, as after BatchNorm folding."""
    random = np.random.default_rng(4)
    spread = np.exp2(random.uniform(-6, 2, 16)).astype(np.float32)
    first = random.standard_normal((16, 3, 3, 3)).astype(np.float32) * spread[:, None, None, None]
    depthwise = random.standard_normal((16, 1, 3, 3)).astype(np.float32) / spread[:, None, None, None]
    last = random.standard_normal((8, 16, 1, 1)).astype(np.float32)
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,3,12,12] x) => (float y)
        <float zero = {{0}}, float six = {{6}}, int64[8] pads = {{0,0,1,1,0,0,1,1}}>
        {{ a = Conv <pads = [1,1,1,1]> (x, first) c = Clip(a, zero, six) {body} e = Clip(d, zero, six)
           y = Conv(e, last) }}"""
    return from_text(text, first=first, depthwise=depthwise, last=last)


def samples(seed: int, count: int = 8) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_smoothing_through_a_clip_gains_and_keeps_the_function(body: str) -> None:
    proto, data = separable(body), samples(1)
    smoothed, plain = (
        quantry.quantize(proto, data, recipe, evaluation_data=samples(2), store=None) for recipe in (NPU, PLAIN)
    )
    gain = smoothed.evaluation.metrics["sqnr"].value - plain.evaluation.metrics["sqnr"].value
    assert gain > 2
    # On other data: at most a few values beyond twice the observed range could differ.
    for sample in samples(3):
        expected = run(proto, sample)["y"]
        np.testing.assert_allclose(
            run(smoothed.stages.equalized.value.model, sample)["y"], expected, rtol=1e-3, atol=1e-3
        )


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.001, 6)), min_size=1, max_size=12),
    st.floats(0.5, 6),
)
def test_a_bound_cuts_off_the_same_values(channels: list[tuple[float, float]], bound: float) -> None:
    factors, high = (np.array(part) for part in zip(*channels, strict=True))
    high = np.minimum(high, bound)
    limited = within_bound(factors, high, bound)
    reaches = 2 * high >= bound
    assert (limited[reaches] == 1).all()
    # The other channels stay below the bound, with room for twice their largest value.
    assert (2 * high[~reaches] <= limited[~reaches] * bound * (1 + 1e-6)).all()
