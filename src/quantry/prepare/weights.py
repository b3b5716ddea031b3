"""The weights of a model apart from its structure: set them aside, put them back, read them one at a time.

onnx's own functions (shape inference, opset conversion) and every comparison of structure go through protobuf, which
ends at 2 GB and copies what it is given. They therefore get a model whose large weights are *placeholders*: tensors
with a name, a type and a shape that claim to lie in an external file.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx
import onnx_ir as ir

WeightKey = tuple[int, str]
"""Index of the graph in ``model.graphs()`` (0 is the main graph) and the initializer's name."""

LARGE_BYTES = 16 * 1024
"""Weights above this are set aside; smaller ones may be shapes or axes that inference needs to read."""

_PLACEHOLDER_LOCATION = "placeholder"


def external_placeholder(tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    """Return a tensor of the same name, type and shape that holds no data."""
    return ir.ExternalTensor(
        _PLACEHOLDER_LOCATION, None, None, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name or ""
    )


def all_weights(model: ir.Model) -> dict[WeightKey, ir.Value]:
    """Return the initializers of every graph of the model that have data, in stored order."""
    return {
        (index, name): value
        for index, graph in enumerate(model.graphs())
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }


@contextmanager
def swapped_weights(model: ir.Model, replacements: Mapping[WeightKey, ir.TensorProtocol]) -> Iterator[None]:
    """Exchange the data of some initializers for the duration of a block; order and identity stay."""
    weights = all_weights(model) if replacements else {}
    originals = {key: weights[key].const_value for key in replacements}
    try:
        for key, tensor in replacements.items():
            weights[key].const_value = tensor
        yield
    finally:
        for key, original in originals.items():
            weights[key].const_value = original


def structure_proto(
    model: ir.Model, keep_below: int = LARGE_BYTES
) -> tuple[onnx.ModelProto, dict[WeightKey, ir.TensorProtocol]]:
    """Return the model as a proto whose large weights are placeholders, and the weights taken out.

    Args:
        model: The model; it is left as it was.
        keep_below: Weights of at most this many bytes stay in the proto; 0 takes out every weight but strings.
    """
    taken = {
        key: value.const_value
        for key, value in all_weights(model).items()
        if value.const_value is not None
        and value.const_value.dtype != ir.DataType.STRING
        and (value.const_value.nbytes > keep_below or isinstance(value.const_value, ir.ExternalTensor))
    }
    with swapped_weights(model, {key: external_placeholder(tensor) for key, tensor in taken.items()}):
        return ir.serde.serialize_model(model), taken


def restore_weights(model: ir.Model, taken: Mapping[WeightKey, ir.TensorProtocol]) -> None:
    """Put weights that ``structure_proto`` took out back by their name; those no longer in the model are dropped."""
    weights = all_weights(model)
    for key, tensor in taken.items():
        if key in weights:
            weights[key].const_value = tensor


def rebuilt(model: ir.Model) -> ir.Model:
    """Return the model as it would come back from its own file, sharing the weights.

    What does not survive a file (scratch metadata, the order in which values were made) must not influence a later
    stage; otherwise a result taken from a store and a fresh one could differ.
    """
    proto, taken = structure_proto(model, keep_below=0)
    fresh = ir.serde.deserialize_model(proto)
    restore_weights(fresh, taken)
    return fresh


def release(tensor: ir.TensorProtocol) -> None:
    """Give back the memory map of an external tensor; it is mapped again when it is next read."""
    if not isinstance(tensor, ir.ExternalTensor):
        return
    try:
        tensor.release()
    except BufferError:
        # Someone still holds the array; the map goes with the last reference to it.
        tensor.raw = None


def raw_bytes(tensor: ir.TensorProtocol) -> bytes:
    """Return the little-endian bytes of a tensor as ONNX stores them, releasing any memory map."""
    # onnx-ir cannot read the bytes of an external tensor without elements.
    data = tensor.tobytes() if tensor.nbytes else b""
    release(tensor)
    return data


def tensor_from_array(array: np.ndarray, name: str) -> ir.TensorProtocol:
    """Return an array as a named tensor, contiguous, without copying where it already is."""
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)


def renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return a tensor's data under another name; the tensor may belong to the caller's model and keeps its own."""
    return ir.LazyTensor(lambda: tensor, tensor.dtype, ir.Shape(tensor.shape.numpy()), name=name)


def new_initializer(name: str, array: np.ndarray) -> ir.Value:
    """Return an array as a value that can be registered as an initializer of a graph."""
    return initializer_of(tensor_from_array(array, name))


def initializer_of(tensor: ir.TensorProtocol) -> ir.Value:
    """Return a value of a tensor's name, type and shape that can be registered as an initializer of a graph."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
