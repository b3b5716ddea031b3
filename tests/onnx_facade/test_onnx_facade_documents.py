"""Snippets of AMD's pages, with the import root renamed, on a small model."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from facade_models import Reader, operators, run, samples, saved_cnn

import quantry.onnx
from quantry.errors import RecipeError
from quantry.onnx import QuantFormat

pytestmark = pytest.mark.filterwarnings("ignore:no calibration data:UserWarning")

IMPORTS = """
from quantry.onnx import ModelQuantizer, PowerOfTwoMethod, QuantType
from quantry.onnx.quantization.config.config import Config, QuantizationConfig
"""

QUANTIZE = """
config = Config(global_quant_config=quant_config)

quantizer = ModelQuantizer(config)
quantizer.quantize_model(input_model_path, output_model_path, calibration_data_reader=None)
"""

CROSS_LAYER_EQUALIZATION = """
quant_config = QuantizationConfig(
    quant_format=QuantFormat.QDQ,
    calibrate_method=quantry.onnx.PowerOfTwoMethod.MinMSE,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    enable_npu_cnn=True,
    include_cle=True,
    extra_options={
        'ActivationSymmetric':True,
        'ReplaceClip6Relu':True,
        'CLESteps':1,
        'CLEScaleAppendBias':True,
        },
)
"""

MIXED_PRECISION = """
quant_config = QuantizationConfig(
    calibrate_method=quantry.onnx.CalibrationMethod.Percentile,
    quant_format=quantry.onnx.VitisQuantFormat.QDQ,
    activation_type=quantry.onnx.VitisQuantType.QInt16,
    weight_type=QuantType.QInt8,
    include_auto_mp=True,
    extra_options={
        'ActivationSymmetric':False,
        'WeightsSymmetric':True,
        'Int32Bias': False,
        'AutoMixprecision': {
            'ActTargetQuantType':QuantType.QInt8,
            'WeightTargetQuantType':QuantType.QInt8,
            'OutputIndex': 0,
            'Top1AccTarget': 0.1,
            'EvaluateFunction': print,
        },
    },
)
"""

FAST_FINETUNE = """
quant_config = QuantizationConfig(
    quant_format=QuantFormat.QDQ,
    calibrate_method=quantry.onnx.PowerOfTwoMethod.MinMSE,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    enable_npu_cnn=True,
    include_fast_ft=True,
    extra_options={
        'ActivationSymmetric':True,
        'FastFinetune': {
            'OptimAlgorithm':'adaround',
            'OptimDevice':'cpu',
            'BatchSize':1,
            'NumIterations':1000,
            'LearningRate':0.1,
        },
    },
)
"""

SMOOTH_QUANT = """
quant_config = QuantizationConfig(
    quant_format=QuantFormat.QDQ,
    calibrate_method=quantry.onnx.PowerOfTwoMethod.MinMSE,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    enable_npu_cnn=True,
    include_sq=True,
    extra_options={
        'ActivationSymmetric':True,
        'SmoothAlpha':0.5,
        },
)
"""


def execute(folder: Path, snippet: str) -> str:
    """Run a snippet; the names that it takes for granted are given to it, and the path of its output is returned."""
    output = str(folder / "quantized.onnx")
    names: dict[str, Any] = {"quantry": quantry, "QuantFormat": QuantFormat}
    names |= {"input_model_path": saved_cnn(folder), "output_model_path": output}
    exec(IMPORTS + snippet + QUANTIZE, names)
    return output


def test_cross_layer_equalization_writes_a_model_for_the_npu(tmp_path: Path) -> None:
    path = execute(tmp_path, CROSS_LAYER_EQUALIZATION)
    model = onnx.load(path)
    kinds = {kind for _, kind in operators(model)}
    assert {"QuantizeLinear", "DequantizeLinear", "HardSigmoid"} <= kinds
    assert "Clip" not in kinds
    scales = [onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer if entry.name.endswith("_scale")]
    assert scales
    assert all(float(scale).hex().split("p")[0] == "0x1.0000000000000" for scale in scales)
    assert run(path, samples(1)[0])[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("snippet", "missing"),
    [
        (MIXED_PRECISION, "automatic mixed precision is not there yet"),
        (FAST_FINETUNE, "finetuning is not there yet"),
        (SMOOTH_QUANT, "SmoothQuant is not there yet"),
    ],
)
def test_algorithm_that_is_missing_says_so_before_any_work(tmp_path: Path, snippet: str, missing: str) -> None:
    with pytest.raises(RecipeError, match=missing):
        execute(tmp_path, snippet)
    assert not (tmp_path / "quantized.onnx").exists()


def test_reader_of_none_warns_of_random_data(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="random sample"):
        execute(tmp_path, CROSS_LAYER_EQUALIZATION)


def test_enumerations_of_onnxruntime_are_taken(tmp_path: Path) -> None:
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
