"""Pre-processing of the float model, where scripts for onnxruntime look for it."""

from quantry.onnx.shape_inference import quant_pre_process

__all__ = ["quant_pre_process"]
