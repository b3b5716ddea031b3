"""Read the large weights of an ONNX file straight into arrays, apart from the rest of the model.

Parsing a model copies all its weights into the parser's memory, and every look at one of them copies it again. Here the
file is cut at the weights: the parser gets the model with a placeholder for each, and the weights become arrays that
later stages share.

::

    ModelProto:  ... graph (7): ... initializer (5): dims, type, name, raw_data (9) ...
"""

import io
import math
import mmap
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from quantry.graph.weights import LARGE_BYTES, external_placeholder
from quantry.graph.wire_format import LENGTH_DELIMITED, Buffer, Field, NotProtobuf, fields, tag, varint

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_PLAIN = {"dims", "data_type", "name", "doc_string", "data_location"}

_WORTH = 1 << 20
"""Files below this are parsed as they are."""


StandIn = Callable[[onnx.TensorProto, Field], bytes]
"""From the description of a weight, and where its values are, to what the parser gets instead."""


def cut_file(path: Path) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    """Return the bytes of a file with placeholders for its large weights, and the weights by name.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size < _WORTH:
            return file.read(), {}
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _cut(content, file)


def cut_bytes(content: bytes) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    """Return bytes with placeholders for the large weights, and the weights by name."""
    return (content, {}) if len(content) < _WORTH else _cut(content, io.BytesIO(content))


def mentions_in_file(path: Path, text: bytes) -> bool:
    """Return whether a text occurs in a file outside of its large weights, which are not read.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is empty.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        matches = _with_stand_ins(content, lambda _, __: b"")
        return text in (content[:] if matches is None else matches)


def _cut(content: Buffer, file: io.BufferedReader | io.BytesIO) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    weights: dict[str, ir.TensorProtocol] = {}

    def placeholder(described: onnx.TensorProto, data: Field) -> bytes:
        if described.name in weights:
            raise NotProtobuf
        dtype = ir.DataType(described.data_type)
        array = np.empty(math.prod(described.dims), dtype.numpy())
        file.seek(data.content)
        if file.readinto(array.view(np.uint8).data) != array.nbytes:
            raise NotProtobuf
        tensor = ir.Tensor(
            array.reshape(tuple(described.dims)), dtype, name=described.name, doc_string=described.doc_string or None
        )
        weights[described.name] = tensor
        return bytes(ir.serde.serialize_tensor(external_placeholder(tensor)).SerializeToString())

    written = _with_stand_ins(content, placeholder)
    return (content[:], {}) if written is None else (written, weights)


def _with_stand_ins(content: Buffer, stand_in: StandIn) -> bytes | None:
    """Return a model with something else for each large weight; None if it is not what writers of ONNX files write."""
    try:
        if sys.byteorder != "little":
            raise NotProtobuf  # weights are stored in little-endian order
        graphs = [field for field in fields(content, 0, len(content)) if field.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].kind != LENGTH_DELIMITED:
            raise NotProtobuf
        graph = b"".join(_parts(content, graphs[0], stand_in))
    except NotProtobuf:
        return None
    head, tail = content[: graphs[0].start], content[graphs[0].end :]
    return head + tag(_GRAPH) + varint(len(graph)) + graph + tail


def _parts(content: Buffer, graph: Field, stand_in: StandIn) -> Iterator[bytes]:
    copied = graph.content
    for field in fields(content, graph.content, graph.end):
        is_large = field.end - field.content > LARGE_BYTES
        if field.number != _INITIALIZER or field.kind != LENGTH_DELIMITED or not is_large:
            continue
        data = [item for item in fields(content, field.content, field.end) if item.number == _RAW_DATA]
        if len(data) != 1 or data[0].kind != LENGTH_DELIMITED:
            continue
        described = _described(content[field.content : data[0].start] + content[data[0].end : field.end], data[0])
        if described is None:
            continue
        written = stand_in(described, data[0])
        yield content[copied : field.start]
        yield tag(_INITIALIZER) + varint(len(written)) + written
        copied = field.end
    yield content[copied : graph.end]


def _described(header: bytes, data: Field) -> onnx.TensorProto | None:
    """Return the rest of a tensor, or None if it is not a plain tensor whose bytes are all there."""
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(header)
        itemsize = ir.DataType(tensor.data_type).numpy().itemsize * 8
        bits = ir.DataType(tensor.data_type).bitwidth
    except Exception:  # whatever is wrong with it, the parser's errors are the ones to show
        return None
    is_plain = {field.name for field, _ in tensor.ListFields()} <= _PLAIN and not tensor.data_location
    fits = all(length > 0 for length in tensor.dims) and math.prod(tensor.dims) * bits == (data.end - data.content) * 8
    # protobuf returns text that is not UTF-8 as bytes.
    texts = all(isinstance(text, str) for text in (tensor.name, tensor.doc_string))
    return tensor if is_plain and fits and itemsize == bits and tensor.name and texts else None
