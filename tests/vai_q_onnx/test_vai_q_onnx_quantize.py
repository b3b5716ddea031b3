"""vai_q_onnx's API: the tutorial's snippets, the signature, the defaults."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from facade_models import Reader, cnn, operators, run, samples, saved_cnn

import quantry.vai_q_onnx
from quantry.errors import RecipeError
from quantry.vai_q_onnx import CalibrationMethod, PowerOfTwoMethod, QuantFormat, QuantType, VitisQuantFormat

QUICK_START = """
import quantry.vai_q_onnx as vai_q_onnx

vai_q_onnx.quantize_static(
    model_input,
    model_output,
    calibration_data_reader,
    quant_format=vai_q_onnx.VitisQuantFormat.FixNeuron,
    calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE)
"""

WITH_NODES = """
import quantry.vai_q_onnx as vai_q_onnx

vai_q_onnx.quantize_static(
    model_input,
    model_output,
    calibration_data_reader,
    quant_format=vai_q_onnx.VitisQuantFormat.FixNeuron,
    calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
    input_nodes=[],
    output_nodes=[],
    extra_options=None,)
"""

PRE_PROCESS = """
from quantry.vai_q_onnx import shape_inference

shape_inference.quant_pre_process(
    input_model_path = model_input,
    output_model_path = model_output,
    skip_optimization = False,
    skip_onnx_shape = False,
    skip_symbolic_shape = False,
    auto_merge = False,
    int_max = 2**31 - 1,
    guess_output_rank = False,
    verbose = 0,
    save_as_external_data = False,
    all_tensors_to_one_file = False,
    external_data_location = "./",
    external_data_size_threshold = 1024,)
"""


def execute(folder: Path, snippet: str) -> onnx.ModelProto:
    output = folder / "quantized.onnx"
    exec(
        snippet,
        {
            "model_input": saved_cnn(folder),
            "model_output": str(output),
            "calibration_data_reader": Reader(),
        },
    )
    return onnx.load(output)


def quantized(folder: Path, **settings: Any) -> onnx.ModelProto:
    quantry.vai_q_onnx.quantize_static(cnn(), folder / "q.onnx", Reader(), **settings)
    return onnx.load(folder / "q.onnx")


@pytest.mark.parametrize("snippet", [QUICK_START, WITH_NODES])
def test_snippet_writes_fix_neurons(tmp_path: Path, snippet: str) -> None:
    model = execute(tmp_path, snippet)
    assert ("ai.onnx.contrib", "FixNeuron") in operators(model)
    reference = run(cnn(), samples(1)[0])[0]
    assert np.abs(run(model, samples(1)[0])[0] - reference).max() < 0.2 * np.abs(reference).max()


def test_snippet_of_preprocessing_folds_batch_norm(tmp_path: Path) -> None:
    assert "BatchNormalization" not in {kind for _, kind in operators(execute(tmp_path, PRE_PROCESS))}


def test_defaults_are_those_of_the_tutorial(tmp_path: Path) -> None:
    parameters = inspect.signature(quantry.vai_q_onnx.quantize_static).parameters
    assert parameters["quant_format"].default is VitisQuantFormat.FixNeuron
    assert parameters["calibrate_method"].default is PowerOfTwoMethod.MinMSE
    assert list(parameters)[:5] == [
        "model_input",
        "model_output",
        "calibration_data_reader",
        "quant_format",
        "input_nodes",
    ]
    assert quantized(tmp_path) == execute(tmp_path, QUICK_START)


def test_no_reader_is_random_data_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="random sample"):
        quantry.vai_q_onnx.quantize_static(cnn(), tmp_path / "q.onnx", None)
    assert run(str(tmp_path / "q.onnx"), samples(1)[0])[0].shape == (2, 5)


def test_vitis_pairs_are_those_of_the_tutorial(tmp_path: Path) -> None:
    found = operators(quantized(tmp_path, quant_format=VitisQuantFormat.QDQ))
    assert {kind for domain, kind in found if domain == "com.vai.quantize"} >= {"VAIQuantizeLinear"}


@pytest.mark.parametrize("spelling", ["use_dpu", "enable_dpu", "enable_ipu_cnn", "enable_npu_cnn"])
def test_every_name_enables_the_npu_rules(tmp_path: Path, spelling: str) -> None:
    assert "HardSigmoid" in {kind for _, kind in operators(quantized(tmp_path, **{spelling: True}))}


def test_method_with_float_scales_needs_another_format(tmp_path: Path) -> None:
    model = quantized(tmp_path, quant_format=QuantFormat.QDQ, calibrate_method=CalibrationMethod.MinMax)
    assert ("", "QuantizeLinear") in operators(model)
    with pytest.raises(RecipeError, match=r"PowerOfTwoMethod.*QuantFormat\.QDQ"):
        quantized(tmp_path, quant_format=VitisQuantFormat.FixNeuron, calibrate_method=CalibrationMethod.MinMax)


def test_tensors_before_and_after_the_nodes_stay_float(tmp_path: Path) -> None:
    everything = quantized(tmp_path)
    some = quantized(tmp_path, input_nodes=["Conv_5"], output_nodes=["Add_9"])
    count = [sum(node.op_type == "FixNeuron" for node in model.graph.node) for model in (everything, some)]
    assert 0 < count[1] < count[0]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"extra_options": {"ActivationSymetric": True}}, "did you mean 'ActivationSymmetric'"),
        ({"per_channel": True}, "per_channel=False"),
        ({"use_dpu": True, "weight_type": QuantType.QInt16}, "set weight_type=QuantType.QInt8"),
    ],
)
def test_unsupported_settings_raise(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        quantized(tmp_path, **settings)
    assert not (tmp_path / "q.onnx").exists()


def test_output_must_be_a_path() -> None:
    with pytest.raises(RecipeError, match="model_output"):
        quantry.vai_q_onnx.quantize_static(cnn(), None, Reader())  # type: ignore[arg-type]


def test_equalization_and_widths_are_applied(tmp_path: Path) -> None:
    plain = quantized(tmp_path)
    assert quantized(tmp_path, quant_format=VitisQuantFormat.FixNeuron, include_cle=True) != plain
    wide = quantized(tmp_path, activation_type=QuantType.QInt16)
    widths = {attribute.s for node in wide.graph.node for attribute in node.attribute if attribute.name == "bit_width"}
    assert b"16" in widths


def test_single_name_instead_of_a_list_raises(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nodes_to_exclude must be of type list, got 'Conv_0' of type str"):
        quantry.vai_q_onnx.quantize_static(cnn(), str(tmp_path / "q.onnx"), Reader(), nodes_to_exclude="Conv_0")


def test_unknown_keyword_raises_with_the_nearest_spelling(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"calibration_method": PowerOfTwoMethod.MinMSE}
    with pytest.raises(RecipeError, match=r"quantize_static must .* 'calibration_method'; did you mean 'calibrate_met"):
        quantry.vai_q_onnx.quantize_static(cnn(), str(tmp_path / "q.onnx"), Reader(), **settings)


def test_switch_of_the_npu_has_no_effect_where_its_rules_cannot_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = saved_cnn(tmp_path)
    for name, settings in {
        "scales": {"calibrate_method": CalibrationMethod.MinMax, "quant_format": QuantFormat.QDQ},
        "wide": {
            "calibrate_method": PowerOfTwoMethod.NonOverflow,
            "quant_format": VitisQuantFormat.QDQ,
            "activation_type": quantry.vai_q_onnx.VitisQuantType.QInt16,
        },
    }.items():
        caplog.clear()
        target = tmp_path / f"{name}.onnx"
        quantry.vai_q_onnx.quantize_static(source, target, Reader(), enable_dpu=True, **settings)
        assert "enable_dpu has no effect" in caplog.text
        assert run(onnx.load(target), samples()[0])
    wrong: dict[str, Any] = {"weight_type": "int8", "quant_format": VitisQuantFormat.QDQ}
    with pytest.raises(RecipeError, match="weight_type must be a QuantType"):
        quantry.vai_q_onnx.quantize_static(source, tmp_path / "wrong.onnx", Reader(), enable_dpu=True, **wrong)


def test_switch_for_transformers_leaves_convolutions_in_float(tmp_path: Path) -> None:
    quantry.vai_q_onnx.quantize_static(
        saved_cnn(tmp_path),
        tmp_path / "out.onnx",
        Reader(),
        calibrate_method=CalibrationMethod.MinMax,
        enable_ipu_transformer=True,
    )
    written = onnx.load(tmp_path / "out.onnx")
    producers = {name: node for node in written.graph.node for name in node.output}
    conv = next(node for node in written.graph.node if node.op_type == "Conv")
    assert conv.input[1] not in producers


def test_result_may_replace_the_float_model(tmp_path: Path) -> None:
    path = saved_cnn(tmp_path)
    quantry.vai_q_onnx.quantize_static(path, path, Reader(), quant_format=QuantFormat.QDQ)
    assert ("", "QuantizeLinear") in operators(onnx.load(path))
