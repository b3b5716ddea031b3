"""A model as onnxruntime's own optimizer rewrites it."""

import tempfile
from pathlib import Path

import onnx


def with_integer_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a Q/DQ model with the integer operators that onnxruntime computes it with, such as QLinearConv.

    Args:
        model: The model, below 2 GB.
    """
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
        # By default pairs of int8 are rewritten only on ARM, where they are the fast ones.
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)
