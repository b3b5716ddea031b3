"""A known range is used unless what was observed is too small for its step."""

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text, run

import quantry

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[8,16] x) => (float[8,{classes}] y)
    {{ l = Gemm(x, w) y = Softmax <axis = 1> (l) }}"""


def classifier(classes: int, sharpness: float) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((16, classes)) * sharpness
    return from_text(TEXT.format(classes=classes), w=weight.astype(np.float32))


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((8, 16)).astype(np.float32)} for _ in range(4)]


@pytest.mark.parametrize("preset", ["XINT8", "S8S8_AAWS", "A8W8", "CPU_INT8"])
@pytest.mark.parametrize("classes", [100, 1000, 5000])
def test_flat_probabilities_keep_their_order(preset: str, classes: int) -> None:
    proto, data = classifier(classes, 0.05), samples()
    result = quantry.quantize(proto, data, preset, store=None)
    expected, got = (
        np.concatenate([run(model, sample)["y"] for sample in data]) for model in (proto, result.to_bytes())
    )
    assert got.any(axis=1).all()
    # For the float model, the preferred class is nearly as good as the best one. Zeros would give an average one.
    chosen = np.take_along_axis(expected, got.argmax(axis=1)[:, None], 1)[:, 0]
    assert (chosen > 0.8 * expected.max(axis=1)).all()


def test_sharp_probabilities_keep_the_known_range() -> None:
    result = quantry.quantize(classifier(10, 3.0), samples(), "S8S8_AAWS", store=None)
    assert float(result.params.tensors["y"].scale) == pytest.approx(1 / 255)
