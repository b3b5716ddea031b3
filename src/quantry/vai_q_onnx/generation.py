"""Two generations of `quantize_static`, told apart by what a call says.

Version 1.14 writes FixNeuron nodes by default; version 1.16, which came with Ryzen AI 1.0, writes standard Q/DQ pairs.
A call without ``quant_format`` is read as the later version if it has an argument that only that version has, or
settings that FixNeuron cannot hold: a method with float scales, or unsigned types. All other calls are read as version
1.14. The environment variable ``QUANTRY_VAI_Q_ONNX`` (``1.14`` or ``1.16``) decides instead.
"""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from quantry.errors import RecipeError
from quantry.onnx.enums import QuantFormat, VitisQuantFormat

SWITCH = "QUANTRY_VAI_Q_ONNX"
"""Environment variable that names the generation."""

FORMATS = {"1.14": VitisQuantFormat.FixNeuron, "1.16": QuantFormat.QDQ}
"""The default format of each generation."""

_LOG = logging.getLogger("quantry")
_LATER_ONLY = (
    *("enable_dpu", "enable_ipu_cnn", "enable_npu_cnn", "enable_ipu_transformer", "enable_npu_transformer"),
    *("extra_op_types_to_quantize", "include_cle", "include_sq", "include_fast_ft", "convert_fp16_to_fp32"),
    *("fp16_fp32_convert", "convert_nchw_to_nhwc", "debug_mode", "print_summary", "random_data_reader_input_shape"),
)
_LATER_ORDER = (
    *("model_input", "model_output", "calibration_data_reader", "quant_format", "input_nodes", "output_nodes"),
    *("op_types_to_quantize", "random_data_reader_input_shape", "per_channel", "reduce_range", "activation_type"),
    *("weight_type", "nodes_to_quantize", "nodes_to_exclude", "optimize_model", "use_external_data_format"),
    *("calibrate_method", "execution_providers", "enable_dpu", "fp16_fp32_convert", "convert_nchw_to_nhwc"),
    *("debug_mode", "include_cle", "extra_options", "print_summary"),
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def by_generation(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with the default format of the generation that a call is written for.

    Args:
        function: `quantize_static`; its signature is that of version 1.14 with the later arguments added.

    Raises:
        RecipeError: From the decorated function: the switch names no generation.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def read(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
        bound = _bound(signature, arguments, keywords)
        if "quant_format" not in bound:
            bound["quant_format"] = _default_format(bound)
        return function(**bound)  # type: ignore[call-arg]

    return read


def _bound(signature: inspect.Signature, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name. The eighth is a switch in version 1.14 and a shape in the later one."""
    shape_index = _LATER_ORDER.index("random_data_reader_input_shape")
    if len(arguments) > shape_index and not isinstance(arguments[shape_index], bool):
        parameters, by_name = signature.parameters, inspect.Parameter.KEYWORD_ONLY
        by_position = inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = [parameters[name].replace(kind=by_position) for name in _LATER_ORDER]
        by_name_only = [entry.replace(kind=by_name) for name, entry in parameters.items() if name not in _LATER_ORDER]
        signature = inspect.Signature([*first, *by_name_only])
    return dict(signature.bind(*arguments, **keywords).arguments)


def _default_format(arguments: Mapping[str, Any]) -> Any:
    version = os.environ.get(SWITCH)
    if version is not None:
        if version not in FORMATS:
            raise RecipeError(f"{SWITCH} must be {' or '.join(FORMATS)}, got {version!r} in the environment")
        reason = f"{SWITCH}={version}"
    else:
        reason = _later(arguments)
        version = "1.16" if reason else "1.14"
        reason = reason or "nothing in the call is of a later version"
    alternative = "1.14" if version == "1.16" else "1.16"
    _LOG.warning(
        f"vai_q_onnx.quantize_static has no quant_format: read as version {version}, which writes {FORMATS[version]} "
        f"({reason}). For version {alternative} ({FORMATS[alternative]}) set {SWITCH}={alternative}, or give "
        "quant_format"
    )
    return FORMATS[version]


def _later(arguments: Mapping[str, Any]) -> str:
    """Return why a call is of the later version; empty if it is not."""
    for name in _LATER_ONLY:
        if name in arguments:
            return f"{name} is an argument of that version"
    method = arguments.get("calibrate_method")
    if type(method).__name__ in ("CalibrationMethod", "LayerWiseMethod", "ExtendedCalibrationMethod"):
        return f"{method} has float scales"
    for name in ("activation_type", "weight_type"):
        kind = arguments.get(name)
        if getattr(kind, "name", "").startswith("QU"):
            return f"{name}={kind} is unsigned"
    return ""
