"""The API of vai_q_onnx on top of quantry: the same names, signature and defaults."""

from functools import partial
from importlib import import_module
from typing import Any

from quantry import module_paths
from quantry.onnx.data_readers import CalibrationDataReader
from quantry.onnx.deployment import dump_model
from quantry.onnx.enums import (
    CalibrationMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
)
from quantry.onnx.pre_process import quant_pre_process
from quantry.vai_q_onnx.quantize import quantize_static

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "PowerOfTwoMethod",
    "QuantFormat",
    "QuantType",
    "VitisQuantFormat",
    "VitisQuantType",
    "dump_model",
    "quant_pre_process",
    "quantize_static",
]


def _tool_member(path: str, name: str) -> Any:
    """Return what the module of a tool has; the tools are imported on first use."""
    return import_module("quantry.onnx.model_tools").tool_member(path.removeprefix("tools."), name)


module_paths.register(__name__, computed={path: partial(_tool_member, path) for path in module_paths.TOOL_PATHS})
