"""Serialize models deterministically, and write them to disk without holding the weights twice.

A model is encoded as *structure* (everything except the weights of the main graph, a few hundred kilobytes) followed
by one ``TensorProto`` per weight. Protobuf allows the fields of a message in any order, so the weights come last and
are streamed: the peak memory is one weight instead of the whole file.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir

from quantry.errors import FileKindError, InternalError, ModelError
from quantry.files import new_file
from quantry.graph.edit import collection_paused
from quantry.graph.weights import WeightKey, all_weights, external_placeholder, raw_bytes, written_with
from quantry.graph.wire_format import tag, varint

INLINE_LIMIT_BYTES = 1_500_000_000
"""Weights above this total go to an external data file; protobuf is limited to 2 GB."""

PROTOBUF_LIMIT_BYTES = 2**31 - 1

_KEEP_INLINE_BELOW = 1024  # onnxruntime needs shapes, axes and the like inline
_ALIGNMENT = 64
_GRAPH_FIELD = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER_FIELD = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_RAW_DATA_FIELD = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number


@dataclass(frozen=True, eq=False)
class WeightPart:
    """One serialized weight.

    Attributes:
        name: Its name.
        header: Its ``TensorProto`` without the data.
        size: Number of bytes of data that follow; None if the header is complete.
        data: Returns the data.
    """

    name: str
    header: bytes
    size: int | None
    data: Callable[[], bytes]


@dataclass(frozen=True, eq=False)
class ModelParts:
    """A serialized model: concatenated, the chunks are an ONNX file.

    Attributes:
        head: Everything except the graph.
        graph: The graph without its weights, as bytes.
        weights: The weights, in order.
    """

    head: onnx.ModelProto
    graph: bytes
    weights: tuple[WeightPart, ...]

    @property
    def weight_bytes(self) -> int:
        """Number of bytes of all weights."""
        return sum(weight.size or 0 for weight in self.weights)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the file, with one weight at a time in memory."""
        lengths = [_tensor_size(weight.header, weight.size) for weight in self.weights]
        size = len(self.graph) + sum(_field_size(_INITIALIZER_FIELD, length) for length in lengths)
        yield self.head.SerializeToString(deterministic=True)
        yield tag(_GRAPH_FIELD) + varint(size)
        yield self.graph
        initializer, raw_data = tag(_INITIALIZER_FIELD), tag(_RAW_DATA_FIELD)
        for weight, length in zip(self.weights, lengths, strict=True):
            beginning = initializer + varint(length) + weight.header
            if weight.size is None:
                yield beginning
            else:
                yield beginning + raw_data + varint(weight.size)
                yield _exactly(weight.size, weight.data(), weight.name)


def serialize(model: ir.Model) -> bytes:
    """Return the model as ONNX bytes with all weights inline; equal models give equal bytes.

    Args:
        model: The model; it is not changed.

    Raises:
        ModelError: The result would exceed protobuf's limit of 2 GB.
    """
    total = weight_bytes(model)
    if total >= PROTOBUF_LIMIT_BYTES:
        raise ModelError(
            f"a model in one piece must be smaller than 2 GB, got weights of {total} bytes; write it to a file"
        )
    return b"".join(model_parts(model).chunks())


def weight_bytes(model: ir.Model) -> int:
    """Return the total size of the initializers of all graphs in bytes."""
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING
    )


def write_model(
    model: ir.Model, path: str | os.PathLike[str], *, external_data_threshold: int = INLINE_LIMIT_BYTES
) -> tuple[Path, ...]:
    """Write a model to a file atomically: a failure leaves no incomplete file.

    Args:
        model: The model; it is not changed.
        path: The ``.onnx`` file; its folder is created if it is missing.
        external_data_threshold: Weights of more bytes than this in total go to ``<name>.data`` next to the model;
            tensors under 1024 bytes stay inline because onnxruntime cannot read shapes from external data.

    Returns:
        The files written, the model first.

    Raises:
        ModelError: The file cannot be written.
    """
    target = Path(path)
    data = target.with_name(target.name + ".data")
    layout = _external_layout(model, data.name) if weight_bytes(model) > external_data_threshold else {}
    if not layout:
        return write_parts(model_parts(model), path)
    _place({target: model_parts(model, layout).chunks(), data: _external_chunks(model, layout)})
    return (target, data)


def write_parts(files: ModelParts, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write a model in one file, atomically, as `write_model` does.

    Args:
        files: The model.
        path: The ``.onnx`` file; its folder is created if it is missing.

    Returns:
        The file written.

    Raises:
        ModelError: The file cannot be written.
    """
    _place({Path(path): files.chunks()})
    return (Path(path),)


def _place(files: Mapping[Path, Iterator[bytes]]) -> None:
    """Write a set of files atomically, the last one first, so that a model appears after its external data."""
    target = next(iter(files))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            # They get their names in the opposite order, or not at all.
            opened = [(stack.enter_context(new_file(path)), chunks) for path, chunks in files.items()]
            for file, chunks in reversed(opened):
                file.writelines(chunks)
    except FileKindError as error:
        raise ModelError(str(error)) from error
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the model must be written to a writable folder with enough space, got: {error}; at {target}"
        ) from error


def model_parts(model: ir.Model, layout: Mapping[WeightKey, ir.ExternalTensor] | None = None) -> ModelParts:
    """Return a model in serialized parts.

    Args:
        model: The model; it is not changed.
        layout: Weights in an external data file, each as a reference to its place there.
    """
    placed = {name: tensor for (_, name), tensor in (layout or {}).items()}
    weights = {
        name: value.const_value for name, value in model.graph.initializers.items() if value.const_value is not None
    }
    proto = _structure(model)
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    return ModelParts(proto, graph, tuple(_part(name, tensor, placed.get(name)) for name, tensor in weights.items()))


def _part(name: str, tensor: ir.TensorProtocol, placed: ir.ExternalTensor | None) -> WeightPart:
    header, size = _tensor_header(placed or tensor, name, placed is not None)
    return WeightPart(name, header, size, partial(raw_bytes, tensor))


def _exactly(size: int, content: bytes, name: str) -> bytes:
    # The length is written before the content, so content of another length would make the file unreadable.
    if len(content) != size:
        raise InternalError(f"a weight must have the {size} bytes its shape declares, got {len(content)}; {name!r}")
    return content


def _structure(model: ir.Model) -> onnx.ModelProto:
    """Return the proto of everything except the weights of the main graph."""
    inner = {key: _plain_tensor(value) for key, value in all_weights(model).items() if key[0] > 0}
    # A quantized model has more weights than nodes. Only annotated weights are written here, without their data.
    weights = dict(model.graph.initializers)
    annotated = {
        (0, name): external_placeholder(value.const_value)
        for name, value in weights.items()
        if value.meta and value.const_value is not None
    }
    left_out = {name for name in weights if (0, name) not in annotated}
    with collection_paused():
        proto = written_with(model, inner | annotated, left_out)
    # An initializer has its own type and shape; repeating them would add 20 % to a small model.
    described = {tensor.name for tensor in proto.graph.initializer}
    del proto.graph.initializer[:]
    for index in reversed([at for at, info in enumerate(proto.graph.value_info) if info.name in described]):
        del proto.graph.value_info[index]
    return proto


def _plain_tensor(value: ir.Value) -> ir.TensorProtocol:
    """Return the data of an initializer of a subgraph, which is stored in an attribute, in one encoding."""
    tensor = value.const_value
    assert tensor is not None
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name)


def _tensor_header(tensor: ir.TensorProtocol, name: str, complete: bool) -> tuple[bytes, int | None]:
    """Return a weight's TensorProto without its data, and the number of raw bytes that follow (None: complete)."""
    if complete or tensor.dtype == ir.DataType.STRING:
        proto = ir.serde.serialize_tensor(tensor)
        proto.name = name
        return proto.SerializeToString(deterministic=True), None
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=tensor.shape.numpy())
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    return proto.SerializeToString(deterministic=True), tensor.nbytes


def _external_layout(model: ir.Model, location: str) -> dict[WeightKey, ir.ExternalTensor]:
    """Return the place of each large weight of the main graph in the external data file."""
    layout: dict[WeightKey, ir.ExternalTensor] = {}
    offset = 0
    for (index, name), value in all_weights(model).items():
        tensor = value.const_value
        assert tensor is not None
        if index > 0 or tensor.dtype == ir.DataType.STRING or tensor.nbytes < _KEEP_INLINE_BELOW:
            continue
        offset += -offset % _ALIGNMENT
        shape = ir.Shape(tensor.shape.numpy())
        layout[index, name] = ir.ExternalTensor(location, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name)
        offset += tensor.nbytes
    return layout


def _external_chunks(model: ir.Model, layout: Mapping[WeightKey, ir.ExternalTensor]) -> Iterator[bytes]:
    """Yield the content of the external data file, one weight at a time."""
    weights = all_weights(model)
    position = 0
    for key, placed in layout.items():
        tensor = weights[key].const_value
        assert tensor is not None
        assert placed.offset is not None
        yield bytes(placed.offset - position)
        yield raw_bytes(tensor)
        position = placed.offset + tensor.nbytes


def _tensor_size(header: bytes, raw: int | None) -> int:
    return len(header) + (0 if raw is None else _field_size(_RAW_DATA_FIELD, raw))


def _field_size(field: int, length: int) -> int:
    return len(tag(field)) + len(varint(length)) + length
