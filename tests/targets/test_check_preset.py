"""The preset for NPUs on a real detector."""

import pytest

import quantry
from quantry import demo
from quantry.quantization import QuantizationResult
from quantry.recipe import PRESETS
from quantry.runtime.sessions import deployment_session
from quantry.targets import check_model

XINT8 = PRESETS["XINT8"].recipe


@pytest.fixture(scope="module")
def result() -> QuantizationResult:
    return quantry.quantize(demo.model_path(), demo.calibration_inputs(1), XINT8, store=None)


def test_detector_quantized_by_the_preset_keeps_every_constraint_and_runs(result: QuantizationResult) -> None:
    assert check_model(result.to_bytes(), "npu-int8") == ()
    (outputs,) = deployment_session(result.to_bytes()).run(None, demo.calibration_inputs(1)[0])
    assert outputs.shape == (1, 1344, 13)


def test_notes_tell_how_to_keep_sigmoid(result: QuantizationResult) -> None:
    (note,) = (note for note in result.notes if "Sigmoid nodes by HardSigmoid" in str(note))
    assert "replaced 93" in str(note)
    assert "prepare.npu.sigmoid_to_hard_sigmoid: false" in str(note)
