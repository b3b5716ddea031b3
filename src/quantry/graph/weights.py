"""The weights of a model, separate from its structure: take them out, put them back, read them one at a time.

onnx's own functions (shape inference, opset conversion) and every comparison of structure use protobuf, which is
limited to 2 GB and copies its input. They therefore get a model whose large weights are *placeholders*: tensors with a
name, a type and a shape that claim to be in an external file.
"""

import copy
from collections.abc import Container, Mapping

import numpy as np
import onnx
import onnx_ir as ir

WeightKey = tuple[int, str]
"""Index of the graph in ``model.graphs()`` (0 is the main graph) and the initializer's name."""

LARGE_BYTES = 16 * 1024
"""Weights above this are taken out; smaller ones may be shapes or axes that inference must read."""

_PLACEHOLDER_LOCATION = "placeholder"


def external_placeholder(tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    """Return a tensor with the same name, type and shape, but without data."""
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


def written_with(
    model: ir.Model, replacements: Mapping[WeightKey, ir.TensorProtocol], left_out: Container[str] = ()
) -> onnx.ModelProto:
    """Return the model as a proto in which some weights have other data.

    The model is only read; replacements are in a view of its graph. Threads that share a store also share models, and
    one may read weights while another writes the structure.

    Args:
        model: The model.
        replacements: Data to write instead of the data of some initializers.
        left_out: Initializers of the main graph that are not written at all.
    """
    inner = {key: tensor for key, tensor in replacements.items() if key[0] > 0}
    if inner:
        # Bodies of If and Loop are written by the nodes that contain them, which do not support views.
        model = model.clone()
        weights = all_weights(model)
        for key, tensor in inner.items():
            weights[key].const_value = tensor
    graph = model.graph
    initializers = [value for name, value in graph.initializers.items() if name not in left_out]
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=graph,
        initializers=[_stand_in(value, replacements.get((0, value.name or ""))) for value in initializers],
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    shell = copy.copy(model)
    shell.graph = view  # type: ignore[assignment]  # writing needs nothing that a view lacks
    return ir.serde.serialize_model(shell)


def _stand_in(value: ir.Value, tensor: ir.TensorProtocol | None) -> ir.Value:
    """Return a value that is written like another, with other data; the value itself if there is none."""
    if tensor is None:
        return value
    stand_in = ir.Value(
        name=value.name,
        shape=value.shape,
        type=value.type,
        doc_string=value.doc_string,
        const_value=tensor,
        metadata_props=value.metadata_props,
    )
    stand_in.meta.update(value.meta)
    return stand_in


def structure_proto(
    model: ir.Model, keep_below: int = LARGE_BYTES
) -> tuple[onnx.ModelProto, dict[WeightKey, ir.TensorProtocol]]:
    """Return the model as a proto whose large weights are placeholders, and the weights that were taken out.

    Args:
        model: The model; it is not changed.
        keep_below: Weights of at most this many bytes stay in the proto; 0 takes out every weight except strings.
    """
    weights = {
        key: value.const_value
        for key, value in all_weights(model).items()
        if value.const_value is not None
        and value.const_value.dtype != ir.DataType.STRING
        and (value.const_value.nbytes > keep_below or isinstance(value.const_value, ir.ExternalTensor))
    }
    return written_with(model, {key: external_placeholder(tensor) for key, tensor in weights.items()}), weights


def restore_weights(model: ir.Model, removed: Mapping[WeightKey, ir.TensorProtocol]) -> None:
    """Put back weights that ``structure_proto`` took out, by name; weights no longer in the model are dropped."""
    weights = all_weights(model)
    for key, tensor in removed.items():
        if key in weights:
            weights[key].const_value = tensor


def rebuilt(model: ir.Model) -> ir.Model:
    """Return the model as it would be loaded from its own file, sharing the weights.

    What a file does not preserve (scratch metadata, the order in which values were created) must not influence later
    stages; otherwise a result from a store and a new one could differ.
    """
    proto, weights = structure_proto(model, keep_below=0)
    fresh = ir.serde.deserialize_model(proto)
    restore_weights(fresh, weights)
    # For a weight, a file has only type and shape; see `quantry.graph.save`.
    for value in fresh.graph.initializers.values():
        value.metadata_props.clear()
        value.doc_string = None
    return fresh


_CHUNK = 1 << 20  # elements checked at a time, so that the masks stay small compared with a large weight


def not_finite(tensor: ir.TensorProtocol) -> tuple[int, int]:
    """Return the number of NaN and of infinite values of a float tensor; an external one is released."""
    flat = tensor.numpy().reshape(-1)
    with np.errstate(all="ignore"):
        # One fast pass: a finite sum has finite terms. Any other sum may be an overflow, so the values are counted.
        suspects = () if np.isfinite(flat.sum()) else range(0, flat.size, _CHUNK)
    chunks = [flat[start : start + _CHUNK] for start in suspects]
    counts = sum(int(np.isnan(chunk).sum()) for chunk in chunks), sum(int(np.isinf(chunk).sum()) for chunk in chunks)
    release(tensor)
    return counts


def release(tensor: ir.TensorProtocol) -> None:
    """Release the memory map of an external tensor; it is mapped again when it is read next."""
    if not isinstance(tensor, ir.ExternalTensor):
        return
    try:
        tensor.release()
    except BufferError:
        # The array is still referenced; the map is released with the last reference.
        tensor.raw = None


def unshared(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor that no one else reads: a tensor in a file keeps its memory map on the object."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        base_dir=tensor.base_dir,
    )


def raw_bytes(tensor: ir.TensorProtocol) -> bytes:
    """Return the little-endian bytes of a tensor as ONNX stores them, releasing any memory map."""
    unshared_tensor = unshared(tensor)
    # onnx-ir cannot read the bytes of an external tensor without elements.
    data = unshared_tensor.tobytes() if unshared_tensor.nbytes else b""
    release(unshared_tensor)
    return data


def tensor_from_array(array: np.ndarray, name: str) -> ir.TensorProtocol:
    """Return an array as a named tensor, contiguous, without copying if possible."""
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)


def renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return a tensor's data under another name; the original tensor keeps its name."""
    return ir.LazyTensor(lambda: tensor, tensor.dtype, ir.Shape(tensor.shape.numpy()), name=name)


def new_initializer(name: str, array: np.ndarray) -> ir.Value:
    """Return an array as a value that can be registered as an initializer of a graph."""
    return initializer_of(tensor_from_array(array, name))


def initializer_of(tensor: ir.TensorProtocol) -> ir.Value:
    """Return a value with a tensor's name, type and shape that can be registered as an initializer of a graph."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
