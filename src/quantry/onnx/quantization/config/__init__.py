"""Configurations, where AMD Quark has them."""

from quantry.onnx.quantization.config.config import Config, QuantizationConfig
from quantry.onnx.quantization.config.custom_config import get_default_config
from quantry.onnx.quantization.config.qconfig import QConfig
from quantry.onnx.quantization.config.spec import QLayerConfig, QTensorConfig

__all__ = ["Config", "QConfig", "QLayerConfig", "QTensorConfig", "QuantizationConfig", "get_default_config"]
