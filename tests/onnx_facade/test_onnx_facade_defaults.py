"""Defaults and choices from AMD's documentation."""

import inspect
from typing import Any

import onnx
import pytest
from facade_models import Reader, cnn, run, samples

from quantry.onnx import (
    CalibrationMethod,
    ModelQuantizer,
    QuantizationConfig,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
    quant_pre_process,
)
from quantry.onnx.translate import translate
from quantry.recipe import CrossLayer, SmoothQuant

A16, A8 = VitisQuantType.QInt16, VitisQuantType.QInt8
PAIRS = {
    "A16W16_A8W16": (A16, A16, A8, A16),
    "A16W16_A16W8": (A16, A16, A16, A8),
    "A16W16_A8W8": (A16, A16, A8, A8),
    "A16W8_A8W8": (A16, A8, A8, A8),
    "A8W16_A8W8": (A8, A16, A8, A8),
}
PRE_PROCESS: dict[str, Any] = {
    "skip_optimization": False,
    "skip_onnx_shape": False,
    "skip_symbolic_shape": False,
    "auto_merge": False,
    "int_max": 2**31 - 1,
    "guess_output_rank": False,
    "verbose": 0,
    "save_as_external_data": False,
    "all_tensors_to_one_file": False,
    "external_data_size_threshold": 1024,
}


@pytest.mark.parametrize("name", ["include_cle", "include_sq", "include_auto_mp", "include_fast_ft", "enable_npu_cnn"])
def test_algorithms_are_off_by_default(name: str) -> None:
    assert getattr(QuantizationConfig(), name) is False


def test_options_of_equalization_have_the_defaults_of_the_document() -> None:
    made = translate(QuantizationConfig(include_cle=True)).recipe.equalize.cross_layer
    assert made == CrossLayer(steps=1, include_bias=True, clip6_to_relu=False)


def test_alpha_of_smooth_quant_is_one_half() -> None:
    assert translate(QuantizationConfig(include_sq=True)).recipe.equalize.smooth == SmoothQuant(alpha=0.5)


@pytest.mark.parametrize("name", PRE_PROCESS)
def test_arguments_of_preprocessing_have_the_defaults_of_the_document(name: str) -> None:
    assert inspect.signature(quant_pre_process).parameters[name].default == PRE_PROCESS[name]


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_of_mixed_precision_gives_a_model_with_both(pair: str) -> None:
    activation, weight, low_activation, low_weight = PAIRS[pair]
    mixed = {"ActTargetQuantType": low_activation, "WeightTargetQuantType": low_weight, "NumTarget": 1}
    config = QuantizationConfig(
        calibrate_method=CalibrationMethod.Percentile,
        quant_format=VitisQuantFormat.QDQ,
        activation_type=activation,
        weight_type=weight,
        include_auto_mp=True,
        extra_options={"AutoMixprecision": mixed},
    )
    model = ModelQuantizer(config).quantize_model(cnn(), None, Reader())
    assert model is not None
    kinds = {onnx.TensorProto.INT8: 0, onnx.TensorProto.INT16: 0}
    for entry in model.graph.initializer:
        if entry.name.endswith("_zero_point") and entry.data_type in kinds:
            kinds[entry.data_type] += 1
    assert all(kinds.values())
    assert run(model, samples(1)[0])[0].shape == (2, 5)


def test_types_of_onnxruntime_are_accepted_as_targets() -> None:
    mixed = {"ActTargetQuantType": QuantType.QInt8, "WeightTargetQuantType": QuantType.QInt8, "L2Target": 1.0}
    config = QuantizationConfig(
        activation_type=A16,
        quant_format=VitisQuantFormat.QDQ,
        include_auto_mp=True,
        extra_options={"AutoMixprecision": mixed},
    )
    assert ModelQuantizer(config).quantize_model(cnn(), None, Reader()) is not None
