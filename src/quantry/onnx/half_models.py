"""float16 models: they are quantized in float32, and the result has the float types of the original."""

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from quantry.graph.passes.convert_opset import convert_opset
from quantry.graph.passes.float16 import float32_to_float16
from quantry.graph.save import write_model

_HALF_SCALES_SINCE_OPSET = 19


def is_half(model: onnx.ModelProto) -> bool:
    """Whether a model computes in float16."""
    weights = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
    return weights or any(map(_is_half, model.graph.input))


def as_half(model: ir.Model) -> ir.Model:
    """Return a model with standard Q/DQ pairs or MatMulNBits in float16, scales included."""
    if model.opset_imports[""] < _HALF_SCALES_SINCE_OPSET:
        model = convert_opset(model, 21)
    float32_to_float16(model)
    return model


def write_as_half(path: Path) -> None:
    """Convert a file with `as_half`, in place."""
    write_model(as_half(ir.load(path)), path)


class HalfReader:
    """Samples of another reader with float32 instead of float16."""

    def __init__(self, reader: Any) -> None:
        """Wrap a reader."""
        self._reader = reader

    def get_next(self) -> Any:
        """Return the next sample, or None at the end."""
        sample = self._reader.get_next()
        if sample is None:
            return None
        return {name: array.astype("float32") if array.dtype == "float16" else array for name, array in sample.items()}


def with_half_ends(model: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 model with the float16 inputs and outputs of the original.

    ::

        x float16 -> Cast -> x_float32 -> ... -> y_float32 -> Cast -> y float16
    """
    half = {value.name for value in (*original.graph.input, *original.graph.output) if _is_half(value)}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    input_casts, output_casts = [], []
    for value in (*graph.input, *graph.output):
        if value.name not in half:
            continue
        inner = f"{value.name}_float32"
        for node in graph.node:
            node.input[:] = [inner if name == value.name else name for name in node.input]
            node.output[:] = [inner if name == value.name else name for name in node.output]
        if value.name in {entry.name for entry in graph.input}:
            input_casts.append(onnx.helper.make_node("Cast", [value.name], [inner], to=onnx.TensorProto.FLOAT))
        else:
            output_casts.append(onnx.helper.make_node("Cast", [inner], [value.name], to=onnx.TensorProto.FLOAT16))
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    nodes = [*input_casts, *graph.node, *output_casts]
    del graph.node[:]
    graph.node.extend(nodes)
    return result


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16)
