"""The API of vai_q_onnx on top of quantry: the same names, signature and defaults."""

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

module_paths.register(__name__)
