"""The form in which onnxruntime writes models."""

from pathlib import Path

import onnx
from onnx import helper, numpy_helper

_MOST = 4096  # Scales and zero points, not weights.


def type_small_tensors(path: Path) -> None:
    """Store scales and zero points of a model in the typed fields, where tools for onnxruntime's models read them.

    Args:
        path: The model, changed in place; weights in external files are not touched.
    """
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        size = 1
        for length in tensor.dims:
            size *= length
        if tensor.name.endswith(("_scale", "_zero_point")) and size <= _MOST and tensor.HasField("raw_data"):
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, array.flatten().tolist()))
    onnx.save(model, path)
