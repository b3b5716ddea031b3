"""Quantizers and configurations, where AMD Quark has them."""

from quantry.onnx.quantization.api import ModelQuantizer
from quantry.onnx.quantization.config import Config, QConfig, QuantizationConfig, get_default_config
from quantry.onnx.quantization.quantize import quantize_dynamic, quantize_static

__all__ = [
    "Config",
    "ModelQuantizer",
    "QConfig",
    "QuantizationConfig",
    "get_default_config",
    "quantize_dynamic",
    "quantize_static",
]
