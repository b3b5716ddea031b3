"""No tuning step loses a run: layers that fail numerically keep their constants, and a note says so."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text, run

import quantry
from quantry.recipe import PRESETS, AdaQuant, AdaRound, BiasCorrection, Gptq, Recipe, TuneOptions, TuneStep

STEPS: dict[str, TuneStep] = {
    "gptq": Gptq(samples=8),
    "gptq without compensation": Gptq(samples=8, compensate=False),
    "adaround": AdaRound(samples=8, iterations=20),
    "adaquant": AdaQuant(samples=8, iterations=20),
    "bias correction": BiasCorrection(),
}
INPUTS = {
    "zeros": lambda random, shape: np.zeros(shape),
    "one constant": lambda random, shape: np.full(shape, 0.7),
    "nearly constant": lambda random, shape: 5 + 1e-4 * random.standard_normal(shape),
    "denormal": lambda random, shape: random.random(shape) * 1e-41,
    "huge": lambda random, shape: random.random(shape) * 1e30,
    "mostly zero": lambda random, shape: (random.random(shape) > 0.98) * 5.0,
}
NET = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,6,6] x) => (float[1,5] y)
    { a = Conv <pads = [1,1,1,1]> (x, w, b) r = Relu(a) p = GlobalAveragePool(r) f = Flatten(p) y = Gemm(f, v, c) }"""


def net() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "v": (8, 5), "c": (5,)}
    return from_text(NET, **{name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("step", STEPS)
def test_data_without_information_do_not_lose_the_run(inputs: str, step: str) -> None:
    random = np.random.default_rng(1)
    data = [{"x": INPUTS[inputs](random, (1, 3, 6, 6)).astype(np.float32)} for _ in range(3)]
    for base in (Recipe(), PRESETS["XINT8"].recipe):
        result = quantry.quantize(net(), data, replace(base, tune=TuneOptions((STEPS[step],))), store=None)
        assert np.isfinite(run(result.to_bytes(), data[0])["y"]).all()


def test_layers_that_cannot_be_tuned_are_named() -> None:
    data = [{"x": np.random.default_rng(1).random((1, 3, 6, 6)).astype(np.float32) * 1e30} for _ in range(3)]
    result = quantry.quantize(net(), data, replace(Recipe(), tune=TuneOptions((Gptq(),))), store=None)
    assert any("gptq" in str(note) and "skipped" in str(note) for note in result.notes)
