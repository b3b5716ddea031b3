"""The API of vai_q_onnx over quantry: the same names, signature and defaults."""

from quantry.onnx.data_readers import CalibrationDataReader
from quantry.onnx.dump import dump_model
from quantry.onnx.enums import (
    CalibrationMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
)
from quantry.onnx.shape_inference import quant_pre_process
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
