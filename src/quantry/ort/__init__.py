"""The quantization functions of onnxruntime on top of quantry, with onnxruntime's signatures.

Replace ``from onnxruntime.quantization import quantize_static`` by ``from quantry.ort import quantize_static``. Members
of onnxruntime's enumerations and its data readers are accepted as they are.
"""

from quantry.onnx.data_readers import CalibrationDataReader
from quantry.onnx.enums import CalibrationMethod, QuantFormat, QuantType
from quantry.onnx.pre_process import quant_pre_process
from quantry.ort.quantize import DynamicQuantConfig, StaticQuantConfig, quantize, quantize_dynamic, quantize_static

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "QuantFormat",
    "QuantType",
    "StaticQuantConfig",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]
