"""Stage 7: write ONNX, one file for each format."""

from quantry.emit.quantized_model import QuantizedModel
from quantry.emit.stage import EMITTERS, emit

__all__ = ["EMITTERS", "QuantizedModel", "emit"]
