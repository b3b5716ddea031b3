"""Quantizers and configurations, where AMD Quark has them."""

from quantry.onnx.quantization.api import ModelQuantizer
from quantry.onnx.quantization.quantize import quantize_dynamic, quantize_static

__all__ = ["ModelQuantizer", "quantize_dynamic", "quantize_static"]
