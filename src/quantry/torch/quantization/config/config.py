"""Configurations under their older path."""

from quantry.torch.config import Config, QConfig, QLayerConfig, QuantizationConfig
from quantry.torch.specification import QTensorConfig, QuantizationSpec

__all__ = ["Config", "QConfig", "QLayerConfig", "QTensorConfig", "QuantizationConfig", "QuantizationSpec"]
