"""`quantize_static` with vai_q_onnx's signature, which is made from the fields of `QuantizationConfig`."""

import inspect
import logging
import os
from enum import Enum
from typing import Any

from quantry.errors import RecipeError, known_keywords
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.enums import PowerOfTwoMethod, VitisQuantFormat
from quantry.onnx.quantizer import ModelInput, run_job
from quantry.onnx.translate import checked_options, translate
from quantry.recipe import VitisDialect
from quantry.recipe.checked import field_docs
from quantry.recipe.option_fields import parameters_of, with_parameters
from quantry.vai_q_onnx.generation import by_generation

_LOG = logging.getLogger("quantry")

_BY_POSITION = (
    *("quant_format", "input_nodes", "output_nodes", "op_types_to_quantize", "per_channel", "reduce_range"),
    *("activation_type", "weight_type", "nodes_to_quantize", "nodes_to_exclude", "optimize_model"),
    *("use_external_data_format", "calibrate_method", "execution_providers", "use_dpu", "extra_options"),
)
_BY_NAME = (
    *("enable_dpu", "enable_ipu_cnn", "enable_npu_cnn", "enable_ipu_transformer", "enable_npu_transformer"),
    *("extra_op_types_to_quantize", "include_cle", "include_sq", "include_fast_ft", "convert_fp16_to_fp32"),
    *("convert_nchw_to_nhwc", "print_summary", "random_data_reader_input_shape", "fp16_fp32_convert", "debug_mode"),
)
_OTHER_NAMES = {
    "use_dpu": "enable_npu_cnn",
    "enable_dpu": "enable_npu_cnn",
    "enable_ipu_cnn": "enable_npu_cnn",
    "enable_ipu_transformer": "enable_npu_transformer",
    "fp16_fp32_convert": "convert_fp16_to_fp32",
}
"""Names of one switch in several versions of vai_q_onnx, to the field of `QuantizationConfig`."""

_DEFAULTS = {"quant_format": VitisQuantFormat.FixNeuron, "calibrate_method": PowerOfTwoMethod.MinMSE}
_SHAPE = "random_data_reader_input_shape"
_DOCS = {
    **field_docs(QuantizationConfig),
    **{name: f"As ``{field}``." for name, field in _OTHER_NAMES.items()},
    "quant_format": "The format. Without it, FixNeuron as in version 1.14, or `QuantFormat.QDQ` for a call of a later "
    "version.",
    _SHAPE: "Shapes of random data if there is no reader: one shape, a list of shapes in the order of the inputs, or a "
    "dict of them by input.",
}


def _parameter(name: str, kind: Any) -> inspect.Parameter:
    if name == _SHAPE:
        return inspect.Parameter(name, kind, default=None)
    field = parameters_of(QuantizationConfig)[_OTHER_NAMES.get(name, name)]
    # A field that holds a list is made by a function.
    default = _DEFAULTS.get(name, getattr(QuantizationConfig(), field.name))
    return inspect.Parameter(name, kind, default=default, annotation=field.annotation)


_PARAMETERS = (
    *(_parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in _BY_POSITION),
    *(_parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in _BY_NAME),
)


@known_keywords("vai_q_onnx.quantize_static", {"calibration_dataset": "calibration_data_reader"})
@by_generation
@with_parameters(_PARAMETERS, {parameter.name: _DOCS[parameter.name] for parameter in _PARAMETERS})
def quantize_static(
    model_input: ModelInput, model_output: str | os.PathLike[str], calibration_data_reader: Any = None, **options: Any
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
        **options: All other arguments.

    Raises:
        UserError: The model, the data or an argument cannot be used; the message says why.
    """
    # Unlike in quantry.onnx, the function of vai_q_onnx always writes a file.
    if model_output is None:
        raise RecipeError("model_output must be a path, got None in vai_q_onnx.quantize_static")
    shape = options.pop(_SHAPE, None)
    extra_options = checked_options(options.pop("extra_options", None))
    for name, field in _OTHER_NAMES.items():
        options[field] = options.pop(name, False) or options.get(field, False)
    # Anything that is no sequence stays as it is, so that the error names the field.
    fields: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in {**_DEFAULTS, **options}.items()
    }
    if shape:
        extra_options["RandomDataReaderInputShape"] = shape
    config = QuantizationConfig(**fields, extra_options=extra_options)
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
