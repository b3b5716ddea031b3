"""`quantize_static` with vai_q_onnx's signature."""

import logging
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from quantry.errors import RecipeError, known_keywords
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.enums import AnyFormat, AnyMethod, AnyType, PowerOfTwoMethod, QuantType, VitisQuantFormat
from quantry.onnx.quantizer import ModelInput, run_job
from quantry.onnx.translate import checked_options, translate
from quantry.recipe import VitisDialect
from quantry.vai_q_onnx.generation import by_generation

_LOG = logging.getLogger("quantry")


@known_keywords("vai_q_onnx.quantize_static", {"calibration_dataset": "calibration_data_reader"})
@by_generation
def quantize_static(  # noqa: PLR0913, PLR0917 - vai_q_onnx's arguments
    model_input: ModelInput,
    model_output: str | os.PathLike[str],
    calibration_data_reader: Any = None,
    quant_format: AnyFormat = VitisQuantFormat.FixNeuron,
    input_nodes: Sequence[str] = (),
    output_nodes: Sequence[str] = (),
    op_types_to_quantize: Sequence[str] = (),
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: AnyType = QuantType.QInt8,
    weight_type: AnyType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] = (),
    nodes_to_exclude: Sequence[str] = (),
    optimize_model: bool = True,
    use_external_data_format: bool = False,
    calibrate_method: AnyMethod = PowerOfTwoMethod.MinMSE,
    execution_providers: Sequence[str] = ("CPUExecutionProvider",),
    use_dpu: bool = False,
    extra_options: Mapping[str, Any] | None = None,
    *,
    enable_dpu: bool = False,
    enable_ipu_cnn: bool = False,
    enable_npu_cnn: bool = False,
    enable_ipu_transformer: bool = False,
    enable_npu_transformer: bool = False,
    extra_op_types_to_quantize: Sequence[str] = (),
    include_cle: bool = False,
    include_sq: bool = False,
    include_fast_ft: bool = False,
    convert_fp16_to_fp32: bool = False,
    convert_nchw_to_nhwc: bool = False,
    print_summary: bool = True,
    random_data_reader_input_shape: Any = None,
    fp16_fp32_convert: bool = False,
    debug_mode: bool = False,
) -> None:
    """Quantize a model with scales from calibration data.

    Arguments mean the same as the fields of `quantry.onnx.QuantizationConfig`. A Vitis QDQ format writes
    VAIQuantizeLinear and VAIDequantizeLinear of com.vai.quantize.

    Two generations of the package have different defaults. Without ``quant_format`` the call decides which one is
    meant, and a line in the log says so: `quantry.vai_q_onnx.generation` has the rule and the switch.

    Args:
        model_input: The float model: a path or an ``onnx.ModelProto``.
        model_output: Path of the result.
        calibration_data_reader: An object with ``get_next()``; None uses one random sample, with a warning.
        quant_format: The format. Without it, FixNeuron as in version 1.14, or `QuantFormat.QDQ` for a call of a later
            version.
        input_nodes: Nodes before these stay float.
        output_nodes: Nodes after these stay float.
        op_types_to_quantize: Quantize only these operator types.
        per_channel: One weight scale per channel.
        reduce_range: Use one bit less for weights.
        activation_type: Type of activations.
        weight_type: Type of weights.
        nodes_to_quantize: Quantize only these nodes.
        nodes_to_exclude: Do not quantize these nodes.
        optimize_model: Fold BatchNormalization.
        use_external_data_format: Store weights outside the model file.
        calibrate_method: The calibration method.
        execution_providers: onnxruntime's execution providers for calibration.
        use_dpu: Apply the rules of AMD's integer NPU; four versions of vai_q_onnx have four names for it.
        extra_options: Further options by name, see docs/reference/options.md.
        enable_dpu: As ``use_dpu``.
        enable_ipu_cnn: As ``use_dpu``.
        enable_npu_cnn: As ``use_dpu``.
        enable_ipu_transformer: Quantize only MatMul and Gemm with a constant operand.
        enable_npu_transformer: As ``enable_ipu_transformer``.
        extra_op_types_to_quantize: Also quantize these operator types.
        include_cle: Cross-layer equalization.
        include_sq: SmoothQuant.
        include_fast_ft: AdaRound or AdaQuant.
        convert_fp16_to_fp32: Convert a float16 model first.
        convert_nchw_to_nhwc: Change the model's inputs to channels-last.
        print_summary: Log a summary of the result.
        random_data_reader_input_shape: Shapes of random data if there is no reader: one shape, a list of shapes in the
            order of the inputs, or a dict of them by input.
        fp16_fp32_convert: As ``convert_fp16_to_fp32``.
        debug_mode: Log every step.

    Raises:
        UserError: The model, the data or an argument cannot be used; the message says why.
    """
    # Unlike in quantry.onnx, the function of vai_q_onnx always writes a file.
    if model_output is None:
        raise RecipeError("model_output must be a path, got None in vai_q_onnx.quantize_static")
    options = checked_options(extra_options)
    if random_data_reader_input_shape:
        options["RandomDataReaderInputShape"] = random_data_reader_input_shape
    config = QuantizationConfig(
        calibrate_method=calibrate_method,
        quant_format=quant_format,
        activation_type=activation_type,
        weight_type=weight_type,
        input_nodes=_listed(input_nodes),
        output_nodes=_listed(output_nodes),
        op_types_to_quantize=_listed(op_types_to_quantize),
        extra_op_types_to_quantize=_listed(extra_op_types_to_quantize),
        nodes_to_quantize=_listed(nodes_to_quantize),
        nodes_to_exclude=_listed(nodes_to_exclude),
        execution_providers=_listed(execution_providers),
        per_channel=per_channel,
        reduce_range=reduce_range,
        optimize_model=optimize_model,
        use_external_data_format=use_external_data_format,
        convert_fp16_to_fp32=convert_fp16_to_fp32 or fp16_fp32_convert,
        convert_nchw_to_nhwc=convert_nchw_to_nhwc,
        include_cle=include_cle,
        include_sq=include_sq,
        include_fast_ft=include_fast_ft,
        enable_npu_cnn=use_dpu or enable_dpu or enable_ipu_cnn or enable_npu_cnn,
        enable_npu_transformer=enable_ipu_transformer or enable_npu_transformer,
        debug_mode=debug_mode,
        print_summary=print_summary,
        extra_options=options,
    )
    config.enable_npu_cnn = _has_npu_rules(config)
    run_job(translate(config, VitisDialect.VAI), model_input, model_output, calibration_data_reader)


def _has_npu_rules(config: QuantizationConfig) -> bool:
    """Return whether the rules of AMD's integer NPU apply; vai_q_onnx ignores the switch where they cannot."""
    if not config.enable_npu_cnn:
        return False
    types = (config.activation_type, config.weight_type)
    names = [kind.name for kind in types if isinstance(kind, Enum)]  # others are refused later
    if type(config.calibrate_method).__name__ == "CalibrationMethod":
        reason, needed = f"calibrate_method={config.calibrate_method}", "power-of-two scales"
    elif config.quant_format is VitisQuantFormat.QDQ and not all(name.endswith("Int8") for name in names):
        reason, needed = f"types {types[0]} and {types[1]} in VitisQuantFormat.QDQ", "8 bits"
    else:
        return True
    _LOG.warning("enable_dpu has no effect with %s: AMD's integer NPU needs %s", reason, needed)
    return False


def _listed(names: Sequence[str]) -> Any:
    """Return names as a list; anything else stays as it is, so that the error names the field."""
    return list(names) if isinstance(names, list | tuple) else names
