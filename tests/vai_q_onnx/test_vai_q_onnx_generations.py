"""Calls of two generations of vai_q_onnx: the default format follows from what the call says."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from facade_models import Reader, cnn, operators, run, samples

import quantry.vai_q_onnx
from quantry.errors import DataError, RecipeError
from quantry.vai_q_onnx import CalibrationMethod, PowerOfTwoMethod, QuantFormat, QuantType, VitisQuantFormat, dump_model

STANDARD, FIX_NEURON = ("", "QuantizeLinear"), ("ai.onnx.contrib", "FixNeuron")


def quantized(folder: Path, *positional: Any, **settings: Any) -> onnx.ModelProto:
    quantry.vai_q_onnx.quantize_static(cnn(), folder / "q.onnx", Reader(), *positional, **settings)
    return onnx.load(folder / "q.onnx")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {
                "activation_type": QuantType.QUInt8,
                "calibrate_method": CalibrationMethod.Percentile,
                "include_cle": True,
                "extra_options": {"ReplaceClip6Relu": True, "CLESteps": 4},
            },
            "include_cle",
        ),
        (
            {
                "activation_type": QuantType.QUInt8,
                "calibrate_method": PowerOfTwoMethod.MinMSE,
                "enable_dpu": True,
                "extra_options": {"ActivationSymmetric": True},
            },
            "enable_dpu",
        ),
        ({"calibrate_method": CalibrationMethod.MinMax}, "float scales"),
        ({"activation_type": QuantType.QUInt8}, "unsigned"),
        ({"fp16_fp32_convert": False}, "fp16_fp32_convert"),
    ],
)
def test_call_of_the_later_version_writes_standard_pairs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], reason: str
) -> None:
    model = quantized(tmp_path, **settings)
    found = operators(model)
    assert STANDARD in found
    assert FIX_NEURON not in found
    assert "read as version 1.16" in caplog.text
    assert reason in caplog.text
    assert "QUANTRY_VAI_Q_ONNX=1.14" in caplog.text
    reference = run(cnn(), samples(1)[0])[0]
    assert np.abs(run(model, samples(1)[0])[0] - reference).max() < 0.2 * np.abs(reference).max()


@pytest.mark.parametrize("settings", [{}, {"use_dpu": True}, {"calibrate_method": PowerOfTwoMethod.NonOverflow}])
def test_call_of_the_first_version_writes_fix_neurons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    assert FIX_NEURON in operators(quantized(tmp_path, **settings))
    assert "read as version 1.14" in caplog.text
    assert "QUANTRY_VAI_Q_ONNX=1.16" in caplog.text


def test_given_format_is_kept_and_nothing_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = quantized(tmp_path, quant_format=VitisQuantFormat.FixNeuron, enable_dpu=True)
    assert FIX_NEURON in operators(model)
    assert "read as version" not in caplog.text


def test_switch_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTRY_VAI_Q_ONNX", "1.16")
    assert STANDARD in operators(quantized(tmp_path))
    monkeypatch.setenv("QUANTRY_VAI_Q_ONNX", "1.14")
    assert FIX_NEURON in operators(quantized(tmp_path, enable_dpu=True))
    monkeypatch.setenv("QUANTRY_VAI_Q_ONNX", "1.15")
    with pytest.raises(RecipeError, match=r"QUANTRY_VAI_Q_ONNX must be 1\.14 or 1\.16, got '1\.15'"):
        quantized(tmp_path)


def test_positional_arguments_follow_the_version(tmp_path: Path) -> None:
    before = (QuantFormat.QDQ, [], [], ["Conv"])
    narrow, wide = (False, True), (False, False)  # per_channel, reduce_range
    first = quantized(tmp_path, *before, *narrow)
    assert first == quantized(tmp_path, *before, [2, 3, 8, 8], *narrow)
    assert first != quantized(tmp_path, *before, *wide)


@pytest.mark.parametrize("shape", [[2, 3, 8, 8], [(2, 3, 8, 8)], {"image": [2, 3, 8, 8]}])
def test_random_data_has_the_given_shape(tmp_path: Path, shape: Any) -> None:
    path = tmp_path / "q.onnx"
    with pytest.warns(UserWarning, match="random sample"):
        quantry.vai_q_onnx.quantize_static(cnn(), path, None, random_data_reader_input_shape=shape)
    dump_model(str(path), random_data_reader_input_shape=shape, output_dir=tmp_path / "dump")
    assert list((tmp_path / "dump").glob("*.bin"))


def test_wrong_number_of_shapes_raises(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="random sample"),
        pytest.raises(DataError, match=r"each of the 1 inputs \(image\)"),
    ):
        quantry.vai_q_onnx.quantize_static(
            cnn(), tmp_path / "q.onnx", None, random_data_reader_input_shape=[[2, 3, 8, 8], [1]]
        )


def test_debug_mode_logs_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quantized(tmp_path, quant_format=QuantFormat.QDQ, debug_mode=True)
    assert any(record.levelname in ("DEBUG", "INFO") for record in caplog.records)
