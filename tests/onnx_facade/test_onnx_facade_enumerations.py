"""Enumerations of onnxruntime are accepted."""

from pathlib import Path

import pytest
from facade_models import Reader, saved_cnn

import quantry.onnx


def test_enumerations_of_onnxruntime_are_accepted(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantFormat as RuntimeFormat
    from onnxruntime.quantization import QuantType as RuntimeType
    from onnxruntime.quantization.calibrate import CalibrationMethod

    config = quantry.onnx.QuantizationConfig(
        calibrate_method=CalibrationMethod.Percentile,
        quant_format=RuntimeFormat.QDQ,
        activation_type=RuntimeType.QUInt8,
        weight_type=RuntimeType.QInt8,
    )
    theirs = quantry.onnx.ModelQuantizer(quantry.onnx.Config(config)).quantize_model(
        saved_cnn(tmp_path), None, Reader()
    )
    ours = quantry.onnx.ModelQuantizer(
        quantry.onnx.Config(
            quantry.onnx.QuantizationConfig(
                calibrate_method=quantry.onnx.CalibrationMethod.Percentile,
                activation_type=quantry.onnx.QuantType.QUInt8,
            )
        )
    ).quantize_model(saved_cnn(tmp_path), None, Reader())
    assert theirs == ours


@pytest.mark.parametrize("name", ["QuantType", "QuantFormat", "CalibrationMethod"])
def test_enumerations_have_the_values_of_onnxruntime(name: str) -> None:
    import onnxruntime.quantization

    theirs = getattr(onnxruntime.quantization, name)
    ours = getattr(quantry.onnx, name)
    assert {member.name: member.value for member in ours}.items() <= {
        member.name: member.value for member in theirs
    }.items()
