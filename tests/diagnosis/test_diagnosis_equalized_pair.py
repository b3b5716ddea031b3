"""Two models of other tools: channels that were rescaled and restored are no loss, a wrong scale is one."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from quantry.diagnosis import diagnose_pair

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
pair (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
<float[4, 4, 1, 1] first, float[4, 4, 1, 1] second>
{ c = Conv(x, first)  r = Relu(c)  y = Conv(r, second) }
"""
FACTORS = np.array([8.0, 0.5, 3.0, 1.0], np.float32)


def model(first: np.ndarray, second: np.ndarray) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(MODEL)
    del parsed.graph.initializer[:]
    parsed.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in (("first", first), ("second", second))
    )
    return parsed


@pytest.fixture
def weights() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, 4, 1, 1)), rng.normal(size=(4, 4, 1, 1))


def gathered(ours: onnx.ModelProto, theirs: onnx.ModelProto) -> dict[str, float]:
    rng = np.random.default_rng(4)
    samples = [{"x": rng.normal(size=(1, 4, 8, 8)).astype(np.float32)} for _ in range(4)]
    return dict(diagnose_pair(ours, theirs, samples).gathered)


def test_equalized_channels_are_no_loss(weights: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = weights
    equalized = model(first * FACTORS[:, None, None, None], second / FACTORS[None, :, None, None])
    found = gathered(model(first, second), equalized)
    assert min(found.values()) > 100


def test_scale_that_nothing_undoes_is_a_loss(weights: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = weights
    found = gathered(model(first, second), model(first * FACTORS[:, None, None, None], second))
    assert max(found.values()) < 5
