"""ModelQuantizer with models, data, files and incompatible options."""

import copy
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from facade_models import Reader, cnn, operators, run, samples, saved_cnn
from onnx import TensorProto, helper, numpy_helper

from quantry.errors import DataError, ModelError, ModelNotFoundError, RecipeError, SelectionError
from quantry.onnx import (
    CalibrationMethod,
    Config,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    ModelQuantizer,
    PowerOfTwoMethod,
    QuantFormat,
    QuantizationConfig,
    QuantType,
    VitisQuantFormat,
    get_default_config,
    quantize_dynamic,
    quantize_static,
)

NPU = {"enable_npu_cnn": True, "calibrate_method": PowerOfTwoMethod.MinMSE, "activation_type": QuantType.QUInt8}


def quantized(**settings: Any) -> onnx.ModelProto:
    model = ModelQuantizer(Config(QuantizationConfig(**settings))).quantize_model(cnn(), None, Reader())
    assert isinstance(model, onnx.ModelProto)
    return model


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {entry.name: onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer}


def test_path_is_written_and_none_returned(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "quantized.onnx"
    assert ModelQuantizer(Config()).quantize_model(saved_cnn(tmp_path), output, Reader()) is None
    reference, result = run(cnn(), samples(1)[0])[0], run(str(output), samples(1)[0])[0]
    assert np.abs(reference - result).max() < 0.1 * np.abs(reference).max()


def test_without_path_the_model_is_returned() -> None:
    assert ("", "QuantizeLinear") in operators(quantized())


def test_objects_of_the_user_are_not_modified() -> None:
    model = cnn()
    config = QuantizationConfig(**NPU, extra_options={"CLESteps": 1, "OptimizeModel": False, "InputNodes": []})
    before, untouched = copy.deepcopy(config), model.SerializeToString(deterministic=True)
    ModelQuantizer(Config(config)).quantize_model(model, None, Reader())
    assert config == before
    assert model.SerializeToString(deterministic=True) == untouched


def test_missing_model_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        ModelQuantizer(Config()).quantize_model(tmp_path / "none.onnx", None, Reader())
    with pytest.raises(FileNotFoundError):
        ModelQuantizer(Config()).quantize_model(tmp_path / "none.onnx", None, Reader())


def test_directory_of_arrays_is_accepted_as_data(tmp_path: Path) -> None:
    for index, sample in enumerate(samples()):
        np.save(tmp_path / f"{index}.npy", sample["image"])
    model = ModelQuantizer(Config()).quantize_model(cnn(), None, calibration_data_path=tmp_path)
    assert model == quantized()


def test_reader_and_directory_together_raise(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one place"):
        ModelQuantizer(Config()).quantize_model(cnn(), None, Reader(), tmp_path)


def test_requested_random_data_gives_no_warning() -> None:
    options = {"UseRandomData": True, "RandomDataReaderInputDataRange": {"image": (-2, 2)}}
    config = QuantizationConfig(extra_options=options)
    assert ModelQuantizer(Config(config)).quantize_model(cnn()) is not None


def test_random_data_gives_a_warning_if_it_was_not_requested() -> None:
    config = QuantizationConfig(extra_options={"RandomDataReaderInputShape": {"image": [1, 3, 8, 8]}})
    with pytest.warns(UserWarning, match="random sample"):
        ModelQuantizer(Config(config)).quantize_model(cnn())


def test_shapes_are_fixed_before_quantization() -> None:
    config = QuantizationConfig(extra_options={"FixShapes": "image:[2,3,8,8]"})
    model = ModelQuantizer(Config(config)).quantize_model(cnn(), None, Reader())
    assert model is not None
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [2, 3, 8, 8]


@pytest.mark.parametrize("text", ["imag:[1,3,8,8]", "image:[1,3]", "image=1x3"])
def test_shapes_that_do_not_fit_raise(text: str) -> None:
    config = QuantizationConfig(extra_options={"FixShapes": text})
    with pytest.raises(RecipeError, match="FixShapes"):
        ModelQuantizer(Config(config)).quantize_model(cnn(), None, Reader())


def test_evaluation_and_summary_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quantry"):
        quantized(extra_options={"EvalMetrics": True, "EvalDataReader": samples(2)})
    assert "cosine 0.99" in caplog.text
    assert "nodes quantized" in caplog.text


def test_option_without_effect_is_a_warning_if_warnings_are_enabled(caplog: pytest.LogCaptureFixture) -> None:
    quantized(extra_options={"Percentile": 99.9}, ignore_warnings=False)
    assert [record.levelname for record in caplog.records if "Percentile" in record.message] == ["WARNING"]


def test_severity_silences_the_log_for_the_call(caplog: pytest.LogCaptureFixture) -> None:
    level = logging.getLogger("quantry").level
    quantized(extra_options={"Percentile": 99.9}, ignore_warnings=False, log_severity_level=4)
    assert not caplog.records
    assert logging.getLogger("quantry").level == level


def test_weights_are_stored_outside_the_model_file(tmp_path: Path) -> None:
    config = Config(QuantizationConfig(use_external_data_format=True, weight_type=QuantType.QInt16))
    wide = cnn()
    wide.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), wide.graph.initializer[0].name)
    )
    ModelQuantizer(config).quantize_model(wide, tmp_path / "q.onnx", Reader())
    assert run(str(tmp_path / "q.onnx"), samples(1)[0])[0].shape == (2, 5)


def test_fix_neuron_writes_fix_neuron() -> None:
    model = quantized(quant_format=VitisQuantFormat.FixNeuron, calibrate_method=PowerOfTwoMethod.MinMSE)
    assert ("ai.onnx.contrib", "FixNeuron") in operators(model)
    assert not {kind for _, kind in operators(model)} & {"QuantizeLinear", "DequantizeLinear"}


def test_asymmetric_power_of_two_search_keeps_its_zero_points() -> None:
    model = quantized(calibrate_method=PowerOfTwoMethod.MinMSE, activation_type=QuantType.QUInt8)
    points = {
        int(value) for name, value in constants(model).items() if name.endswith("_zero_point") and value.ndim == 0
    }
    assert len(points) > 2


def test_constant_of_the_moving_average_has_effect() -> None:
    def scales(constant: float) -> list[float]:
        options = {"CalibMovingAverage": True, "CalibMovingAverageConstant": constant}
        found = constants(quantized(extra_options=options))
        return [float(value) for name, value in sorted(found.items()) if name.endswith("_scale") and value.ndim == 0]

    assert scales(0.0) != scales(0.9)


def test_16_bits_use_standard_pairs() -> None:
    model = quantized(activation_type=QuantType.QInt16)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] >= 21
    assert ("", "QuantizeLinear") in operators(model)


def test_nodes_are_excluded_by_name_pattern_and_subgraph() -> None:
    model = quantized(nodes_to_exclude=["Gemm_12"], subgraphs_to_exclude=[(["Conv_5"], ["Mul_8"])])
    weights = {name for name in constants(model) if name.endswith("_quantized")}
    assert not any(name.startswith(("w2", "w3")) for name in weights)
    with pytest.raises(SelectionError, match=r"^nodes_to_exclude must name .* 'Gemm_13'.*Gemm_12"):
        quantized(nodes_to_exclude=["Gemm_13"])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"nodes_to_quantize": ["none"]}, "^nodes_to_quantize must"),
        ({"input_nodes": ["none"]}, "^input_nodes must"),
        ({"output_nodes": ["none"]}, "^output_nodes must"),
        ({"op_types_to_quantize": ["LeakyRelu"]}, "^op_types_to_quantize must"),
        ({"subgraphs_to_exclude": [(["none"], ["Gemm_12"])]}, "^subgraphs_to_exclude.starts must"),
        ({"subgraphs_to_exclude": [(["Gemm_12"], ["Conv_5"])]}, "^subgraphs_to_exclude must name nodes joined"),
    ],
)
def test_empty_selection_names_the_option(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(SelectionError, match=named):
        quantized(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_type": "QInt8"}, "activation_type must be a QuantType such as QuantType.QInt8, got 'QInt8' of"),
        ({"weight_type": "qint16"}, "weight_type must be a QuantType such as QuantType.QInt16"),
        ({"weight_type": "VitisQuantType.QBFP"}, "must be an ExtendedQuantType such as ExtendedQuantType.QBFP"),
        ({"weight_type": None}, "must be a QuantType such as QuantType.QInt8, got None of type NoneType"),
        ({"calibrate_method": "percentile"}, "must be a CalibrationMethod such as CalibrationMethod.Percentile"),
        ({"quant_format": "FixNeuron"}, "must be a VitisQuantFormat such as VitisQuantFormat.FixNeuron"),
        ({"extra_options": {"WeightCalibrateMethod": "MinMSE"}}, "such as PowerOfTwoMethod.MinMSE"),
        ({"per_channel": "yes"}, "per_channel must be of type bool, got 'yes' of type str"),
    ],
)
def test_wrong_type_suggests_the_intended_member(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        quantized(**settings)


def test_operator_types_absent_from_the_model_are_ignored() -> None:
    model = quantized(op_types_to_quantize=["Conv", "LeakyRelu"], include_cle=False)
    assert not any(name.startswith("w3") and name.endswith("_quantized") for name in constants(model))


def test_unknown_operator_type_is_an_error_with_the_nearest_spelling() -> None:
    with pytest.raises(RecipeError, match="did you mean 'Conv'"):
        quantized(op_types_to_quantize=["Convv"])


@pytest.mark.parametrize(
    ("settings", "reason", "nearest"),
    [
        ({**NPU, "per_channel": True}, "one shift per tensor", "set per_channel=False"),
        ({**NPU, "reduce_range": True}, "products of 8 bits", "set reduce_range=False"),
        ({**NPU, "weight_type": QuantType.QInt16}, "signed bytes", "set weight_type=QuantType.QInt8"),
        ({**NPU, "activation_type": QuantType.QInt16}, "multiplies bytes", "set activation_type=QuantType.QInt8"),
        ({**NPU, "extra_options": {"ActivationSymmetric": False}}, "no zero points", "set ActivationSymmetric=True"),
        ({**NPU, "extra_options": {"WeightSymmetric": False}}, "no zero points", "set WeightSymmetric=True"),
        ({**NPU, "extra_options": {"Int32Bias": True}}, "stores 8-bit biases", "omit Int32Bias"),
        ({**NPU, "quant_format": QuantFormat.QOperator}, "8-bit ones", "QuantFormat.QDQ"),
        ({**NPU, "calibrate_method": CalibrationMethod.MinMax}, "by shifting", "PowerOfTwoMethod.MinMSE"),
        ({"quant_format": VitisQuantFormat.FixNeuron}, "one bit position", "PowerOfTwoMethod.MinMSE"),
        (
            {
                "quant_format": VitisQuantFormat.FixNeuron,
                "calibrate_method": PowerOfTwoMethod.MinMSE,
                "per_channel": True,
            },
            "one bit position",
            "per_channel=False",
        ),
        (
            {
                "quant_format": VitisQuantFormat.FixNeuron,
                "calibrate_method": PowerOfTwoMethod.MinMSE,
                "extra_options": {"ActivationSymmetric": False},
            },
            "one bit position",
            "set ActivationSymmetric=True",
        ),
        (
            {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QInt16},
            "its kernels have 8 bits",
            "QuantFormat.QDQ",
        ),
        (
            {"quant_format": QuantFormat.QOperator, "weight_type": QuantType.QUInt8},
            "no other kernel",
            "QuantType.QUInt8",
        ),
        (
            {
                "quant_format": ExtendedQuantFormat.QDQ,
                "weight_type": ExtendedQuantType.QUInt32,
                "per_channel": True,
            },
            "takes one scale",
            "set per_channel=False",
        ),
        (
            {
                "quant_format": VitisQuantFormat.FixNeuron,
                "calibrate_method": PowerOfTwoMethod.MinMSE,
                "weight_type": ExtendedQuantType.QInt32,
            },
            "one bit position",
            "QInt16",
        ),
        ({"activation_type": ExtendedQuantType.QBFP}, "no other types", "ExtendedQuantFormat.QDQ"),
        ({"weight_type": ExtendedQuantType.QInt32}, "no other types", "ExtendedQuantFormat.QDQ"),
        (
            {
                "weight_type": ExtendedQuantType.QBFP,
                "quant_format": ExtendedQuantFormat.QDQ,
                "per_channel": True,
            },
            "no scales per channel",
            "use False",
        ),
        ({"weight_type": ExtendedQuantType.QFloat16, "per_channel": True}, "have no scale", "set per_channel=False"),
        (
            {
                "activation_type": QuantType.QInt16,
                "weight_type": QuantType.QInt16,
                "extra_options": {"Int32Bias": True},
            },
            "overflow int32",
            "omit Int32Bias",
        ),
        ({"calibrate_method": Int16Method.MinMax}, "powers of two", "CalibrationMethod.MinMax"),
        (
            {"activation_type": QuantType.QFLOAT8E4M3FN, "quant_format": VitisQuantFormat.QDQ},
            "8-bit floats are standard ONNX",
            "QuantFormat.QDQ",
        ),
        ({"log_severity_level": 9}, "from 0 to 4", "9"),
        ({"subgraphs_to_exclude": ["Conv_0"]}, "pairs", "Conv_0"),
        ({"calibrate_method": "MinMSE"}, "calibrate_method", "such as PowerOfTwoMethod.MinMSE"),
    ],
)
def test_incompatible_options_raise_before_any_work(settings: dict[str, Any], reason: str, nearest: str) -> None:
    class Untouched:
        def get_next(self) -> None:
            raise AssertionError("data were read")

    with pytest.raises(RecipeError) as caught:
        ModelQuantizer(Config(QuantizationConfig(**settings))).quantize_model(cnn(), None, Untouched())
    assert reason in str(caught.value)
    assert nearest in str(caught.value)
    # Users of the facade see its option names, not the fields of a recipe.
    assert not re.search(r"\b(plan|scale|emit)\.[a-z]", str(caught.value))


def test_conflict_of_a_single_tensor_names_the_tensor() -> None:
    options = {"TensorQuantOverrides": {"image": [{"quant_type": QuantType.QInt16}]}}
    with pytest.raises(RecipeError, match=r"^the type of image: weight.data_type must be .*quant_format=QuantFormat"):
        quantized(quant_format=QuantFormat.QOperator, activation_type=QuantType.QUInt8, extra_options=options)


def test_configuration_of_another_type_raises() -> None:
    with pytest.raises(RecipeError, match="QuantizationConfig"):
        ModelQuantizer(Config("XINT8")).quantize_model(cnn(), None, Reader())  # type: ignore[arg-type]


def test_static_function_takes_fields_by_name(tmp_path: Path) -> None:
    quantize_static(saved_cnn(tmp_path), tmp_path / "q.onnx", Reader(), per_channel=True, include_cle=False)
    assert any(value.ndim == 1 for name, value in constants(onnx.load(tmp_path / "q.onnx")).items() if "scale" in name)
    with pytest.raises(RecipeError, match="did you mean 'per_channel'"):
        quantize_static(cnn(), None, Reader(), perchannel=True)


def test_dynamic_function_needs_no_data() -> None:
    model = quantize_dynamic(cnn(), weight_type=QuantType.QUInt8)
    assert model is not None
    kinds = {kind for _, kind in operators(model)}
    assert {"DynamicQuantizeLinear", "ConvInteger"} <= kinds
    assert run(model, samples(1)[0])[0].shape == (2, 5)
    with pytest.raises(RecipeError, match=r"quantize_dynamic must be given .* did you mean 'per_channel'"):
        quantize_dynamic(cnn(), perchannel=True)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"UseGPTQ": True}, "DequantizeLinear"),
        ({"UseGPTQ": True, "GPTQParams": {"Bits": 4, "GroupSize": 32}}, "DequantizeLinear"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"GroupSize": 16}}, "MatMulNBits"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"GroupSize": 16, "Algorithm": "GPTQ"}}, "MatMulNBits"),
        ({"WeightsOnly": True}, "DequantizeLinear"),
    ],
    ids=str,
)
def test_weight_only_options_keep_activations_float(options: dict[str, Any], kind: str) -> None:
    model = quantized(extra_options=options)
    kinds = {name for _, name in operators(model)}
    assert kind in kinds
    assert "QuantizeLinear" not in kinds
    assert run(model, samples(1)[0])[0].shape == (2, 5)


def test_algorithms_run_together() -> None:
    options = {"BiasCorrection": True, "FastFinetune": {"NumIterations": 3}}
    model = quantized(include_cle=True, include_sq=True, include_fast_ft=True, extra_options=options)
    assert run(model, samples(1)[0])[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {**NPU, "extra_options": {"WeightsOnly": True}},
            r"extra_options\['WeightsOnly'\] must be False with enable_npu_cnn=True",
        ),
        ({**NPU, "use_dynamic_quant": True}, "use_dynamic_quant must be False with enable_npu_cnn=True"),
        (
            {"quant_format": QuantFormat.QOperator, "extra_options": {"WeightsOnly": True}},
            r"'WeightsOnly'\] must be False with quant_format=QuantFormat.QOperator.*QDQ or use_dynamic_quant",
        ),
        (
            {"use_dynamic_quant": True, "weight_type": QuantType.QInt16},
            "weight_type must be QuantType.QInt8 or QuantType.QUInt8 with use_dynamic_quant=True",
        ),
    ],
)
def test_options_incompatible_with_float_activations_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        quantized(**settings)


def test_inputs_with_channels_last_compute_the_same() -> None:
    first = quantized()
    data = [{"image": sample["image"].transpose(0, 2, 3, 1)} for sample in samples()]
    config = QuantizationConfig(convert_nchw_to_nhwc=True)
    last = ModelQuantizer(config).quantize_model(cnn(), None, Reader(data))
    assert last is not None
    shape = [entry.dim_value for entry in last.graph.input[0].type.tensor_type.shape.dim]
    assert shape[1:] == [8, 8, 3]
    np.testing.assert_array_equal(run(last, data[0])[0], run(first, samples(1)[0])[0])
    # Scripts have readers for the model as it was; AMD's packages transpose their samples.
    again = ModelQuantizer(config).quantize_model(cnn(), None, Reader(samples()))
    assert again is not None
    np.testing.assert_array_equal(run(again, data[0])[0], run(last, data[0])[0])


def test_types_of_single_tensors_reach_the_model() -> None:
    options = {"TensorQuantOverrides": {"image": [{"quant_type": QuantType.QInt16}]}}
    model = quantized(quant_format=ExtendedQuantFormat.QDQ, extra_options=options)
    assert constants(model)["image_zero_point"].dtype == np.int16


def test_import_loads_no_heavy_library() -> None:
    code = """
import sys, quantry.onnx, quantry.vai_q_onnx
sys.stdout.write(",".join({"torch", "onnxruntime", "optuna"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ""


def test_message_about_half_precision_names_the_option_of_this_api() -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "halves",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [1, 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [1, 3])],
        [onnx.numpy_helper.from_array(np.eye(4, 3, dtype=np.float16), "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match="set convert_fp16_to_fp32=True to convert it"):
        ModelQuantizer(QuantizationConfig()).quantize_model(model)
    converted = ModelQuantizer(QuantizationConfig(convert_fp16_to_fp32=True))
    assert converted.quantize_model(model, None, [{"x": np.ones((1, 4), np.float32)}]) is not None


def half_product(width: int = 32) -> onnx.ModelProto:
    weight = np.random.default_rng(0).normal(size=(width, 16)).astype(np.float16)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
            helper.make_node("Relu", ["y"], ["z"], name="r"),
        ],
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, width])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT16, [2, 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("preset", ["A8W8", "MATMUL_NBITS"])
@pytest.mark.parametrize("wide", [True, False])
def test_half_precision_model_keeps_its_types(tmp_path: Path, preset: str, wide: bool) -> None:
    config = get_default_config(preset)
    config.include_cle = False
    config.quant_format = QuantFormat.QDQ
    config.extra_options |= {"QuantizeFP16": True, "UseFP32Scale": wide, "TmpDir": str(tmp_path)}
    sample = {"x": np.random.default_rng(1).normal(size=(2, 32)).astype(np.float16)}
    model = ModelQuantizer(config).quantize_model(half_product(), None, iter([sample]))
    assert model is not None
    scales = [tensor for tensor in model.graph.initializer if "scale" in tensor.name]
    assert {tensor.data_type for tensor in scales} == {TensorProto.FLOAT if wide else TensorProto.FLOAT16}
    found, wanted = run(model, sample)[0], run(half_product(), sample)[0]
    assert found.dtype == np.float16
    assert np.abs(found - wanted).max() < (0.2 if preset == "A8W8" else 2.5)


def test_results_of_chosen_operators_stay_float() -> None:
    config = QuantizationConfig(
        quant_format=QuantFormat.QDQ,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm"]},
    )
    model = ModelQuantizer(config).quantize_model(cnn(), None, Reader())
    assert model is not None
    last = next(node for node in model.graph.node if model.graph.output[0].name in node.output)
    assert last.op_type == "Gemm"
