"""Load float models: from a file, bytes, a proto or an onnx-ir model, with clear errors for everything that can fail.

`ModelSource` is what the pipeline works with: a model that is loaded lazily and identified by its content.
"""

import os
import textwrap
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from quantry.errors import ModelError, ModelNotFoundError, QuantryError
from quantry.graph.float_model import model_fingerprint
from quantry.graph.stored_weights import cut_bytes, cut_file, mentions_in_file
from quantry.graph.wellformed import check_well_formed
from quantry.memo import Digest, fingerprint, fingerprint_file


def parse_model(content: bytes, label: str) -> onnx.ModelProto:
    """Return the proto that is encoded in bytes.

    Args:
        content: Bytes of an ONNX file.
        label: Name of the model in messages.

    Raises:
        ModelError: The bytes are empty, truncated, not an ONNX model, or a model without a graph.
    """
    if not content:
        raise ModelError(f"the model must not be empty, got 0 bytes; in {label}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ModelError(
            f"the model must be a complete ONNX protobuf, got {len(content)} bytes that do not decode "
            f"(truncated, or another format); in {label}"
        ) from error
    if not proto.HasField("graph"):
        raise ModelError(f"the model must contain a graph, got {len(content)} bytes without one; in {label}")
    return proto


def check_unique_names(graph: onnx.GraphProto, label: str) -> None:
    """Check that no two tensors of a graph or its subgraphs have the same name, which onnx-ir cannot represent.

    Raises:
        ModelError: A name is used twice.
    """
    location = f"in graph {graph.name!r} of {label}"
    inputs = [value.name for value in graph.input]
    weights = [tensor.name for tensor in graph.initializer]
    computed = [name for node in graph.node for name in node.output if name]
    _check(inputs, "input", location)
    _check(weights, "initializer", location)
    # Old files list initializers among the inputs as well, so those two may share a name.
    _check((*{*inputs, *weights}, *computed), "tensor", location)
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                check_unique_names(subgraph, label)


def _check(names: Iterable[str], kind: str, location: str) -> None:
    name, count = next(iter(Counter(names).most_common(1)), ("", 1))
    if count > 1:
        raise ModelError(f"every {kind} must have a unique name, got {name!r} {count} times; {location}")


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield every tensor of the model that is stored in another file, both initializers and node attributes."""
    for graph in (*model.graphs(), *(function.graph for function in model.functions.values())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if not attribute.is_ref() and isinstance(attribute.value, ir.ExternalTensor):
                    yield attribute.value


def external_files(model: ir.Model) -> tuple[tuple[str, Path], ...]:
    """Return the external data files as (location as written in the model, path), sorted, without duplicates."""
    return tuple(sorted({(str(tensor.location), Path(tensor.path)) for tensor in external_tensors(model)}))


def check_external_data(model: ir.Model, label: str) -> None:
    """Check that the bytes of every external tensor exist inside the model's folder, without reading them.

    Raises:
        ModelError: A file is missing, shorter than declared, or outside the model's folder.
    """
    sizes: dict[str, int] = {}
    for tensor in external_tensors(model):
        location = f"tensor {tensor.name!r} at {str(tensor.location)!r} in {label}"
        _check_containment(tensor, location)
        if tensor.path not in sizes:
            path = Path(tensor.path)
            if not path.is_file():
                raise ModelError(f"external data must exist next to the model, found no file {path}; {location}")
            status = path.stat()
            if status.st_nlink > 1:
                # onnx-ir refuses such files when it reads them; raise before any work is done.
                raise ModelError(
                    f"external data must not have hard links, got {status.st_nlink}; copy the file; {location}"
                )
            sizes[tensor.path] = status.st_size
        _check_length(tensor, sizes[tensor.path], location)


def _check_containment(tensor: ir.ExternalTensor, location: str) -> None:
    folder = Path(tensor.base_dir).resolve()
    target = Path(tensor.path).resolve()
    if not target.is_relative_to(folder):
        raise ModelError(f"external data must be inside the model's folder {folder}, got {target}; {location}")


def _check_length(tensor: ir.ExternalTensor, size: int, location: str) -> None:
    declared = tensor.nbytes if tensor.length is None else tensor.length
    if declared != tensor.nbytes:
        raise ModelError(
            f"external data must have the {tensor.nbytes} bytes of its shape, got length {declared}; {location}"
        )
    end = (tensor.offset or 0) + declared
    if end > size:
        raise ModelError(f"external data must have at least {end} bytes, got a file of {size} bytes; {location}")


ModelLike: TypeAlias = str | os.PathLike[str] | bytes | bytearray | onnx.ModelProto | ir.Model


class ModelSource(ABC):
    """A float model that is loaded when it is needed.

    Two sources with the same content are equal for every stage: a path or a label is not identity. The content is
    hashed once and the digest is kept, so the model must not change afterwards.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """Name of the model in messages: its path, or ``in-memory model``."""

    @abstractmethod
    def load(self) -> ir.Model:
        """Return a new onnx-ir model; large external weights stay on disk until they are read."""

    @cached_property
    def _digest(self) -> Digest:
        try:
            return self._hash()
        except QuantryError:
            raise
        except Exception as error:
            # The libraries raise arbitrary exceptions for malformed tensors.
            raise ModelError(f"the model must be well formed, got {error}; in {self.label}") from error

    @abstractmethod
    def _hash(self) -> Digest:
        """Return the digest of the content."""

    def __fingerprint__(self) -> Digest:
        """Return the digest of the content, hashed on first use."""
        return self._digest


class _FileSource(ModelSource):
    """A model file with its external data files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def label(self) -> str:
        return str(self.path)

    def load(self) -> ir.Model:
        return _load_file(self.path)

    def _hash(self) -> Digest:
        files = external_files(self.load()) if self._may_have_external_data() else ()
        return fingerprint((fingerprint_file(self.path), tuple((name, fingerprint_file(at)) for name, at in files)))

    def _may_have_external_data(self) -> bool:
        # The key of every external tensor is in the file as text, and searching for it is far cheaper than loading the
        # model. A file that is missing or empty is left to the loader, which raises the error.
        try:
            return mentions_in_file(self.path, b"location")
        except (OSError, ValueError):
            return True


class _BytesSource(ModelSource):
    """A serialized model without external data."""

    label = "in-memory model"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def load(self) -> ir.Model:
        return _load_bytes(self.content)

    def _hash(self) -> Digest:
        return fingerprint(self.content)


class _ProtoSource(ModelSource):
    """A proto in memory; its tensors are shared, not copied."""

    label = "in-memory model"

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto

    def load(self) -> ir.Model:
        return _from_proto(self.proto, self.label)

    def _hash(self) -> Digest:
        return model_fingerprint(self.load())


class _GraphSource(ModelSource):
    """An onnx-ir model in memory; its tensors are shared, not copied."""

    label = "in-memory model"

    def __init__(self, model: ir.Model) -> None:
        self.model = model

    def load(self) -> ir.Model:
        model = self.model.clone()
        check_external_data(model, self.label)
        return _with_short_domain(model)

    def _hash(self) -> Digest:
        return model_fingerprint(self.model)


def model_source(model: ModelLike | ModelSource) -> ModelSource:
    """Return a source for a model in any form; nothing is read yet.

    Args:
        model: A path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; a source is returned as is.

    Raises:
        ModelError: It is none of these.
    """
    if isinstance(model, ModelSource):
        return model
    if isinstance(model, str | os.PathLike):
        return _FileSource(Path(model))
    if isinstance(model, bytes | bytearray):
        return _BytesSource(bytes(model))
    if isinstance(model, onnx.ModelProto):
        return _ProtoSource(model)
    if isinstance(model, ir.Model):
        return _GraphSource(model)
    raise ModelError(
        f"a model must be a path, bytes, an onnx.ModelProto or an onnx_ir.Model, got {type(model).__qualname__}; "
        "as the model to quantize"
    )


def read_model(model: str | os.PathLike[str] | bytes) -> ir.Model:
    """Return the model in a file or in bytes.

    Args:
        model: Path of an ONNX file, with external data in its folder if any, or bytes without external data.

    Raises:
        ModelNotFoundError: There is no such file.
        ModelError: It is not an ONNX model, or its external data is missing, too short or outside its folder.
    """
    return _load_bytes(model) if isinstance(model, bytes) else _load_file(Path(model))


def _load_file(path: Path) -> ir.Model:
    if path.is_dir():
        raise ModelError(f"the model must be an ONNX file, got a folder; at {path}")
    try:
        content, weights = cut_file(path)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"the model file must exist, found nothing; at {path}") from error
    except OSError as error:
        raise ModelError(f"the model file must be readable, got {error.strerror}; at {path}") from error
    return _from_proto(parse_model(content, str(path)), str(path), weights, base_dir=path.absolute().parent)


def _load_bytes(content: bytes) -> ir.Model:
    content, weights = cut_bytes(content)
    return _from_proto(parse_model(content, _BytesSource.label), _BytesSource.label, weights)


def _sort_nodes(graph: ir.Graph, label: str) -> None:
    """Sort nodes that stand before what they read: AMD Quark writes such files, and onnxruntime runs them."""
    visited: set[ir.Node] = set()
    for node in graph:
        sources = (value.producer() for value in node.inputs if value is not None)
        if any(source is not None and source.graph is graph and source not in visited for source in sources):
            try:
                graph.sort()
            except ValueError as error:
                raise ModelError(
                    f"the graph must have no cycles, got one; in graph {graph.name!r} of {label}"
                ) from error
            return
        visited.add(node)


def _from_proto(
    proto: onnx.ModelProto,
    label: str,
    weights: Mapping[str, ir.TensorProtocol] | None = None,
    base_dir: Path | None = None,
) -> ir.Model:
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ModelError(f"weights must be dense, got the sparse initializer {name!r}; convert it; in {label}")
    check_well_formed(proto, label)
    check_unique_names(proto.graph, label)
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # onnx-ir wraps what it finds in its own and in builtin exceptions
        reason = textwrap.shorten(str(error.__cause__ or error), 300)
        raise ModelError(f"the model must be a consistent ONNX graph, got: {reason}; in {label}") from error
    for name, tensor in (weights or {}).items():
        model.graph.initializers[name].const_value = tensor
    _sort_nodes(model.graph, label)
    outside = next(external_tensors(model), None)
    if base_dir is None and outside is not None:
        raise ModelError(
            f"a model in memory must contain its weights, got external data at {str(outside.location)!r}; "
            f"pass the path of the model file; tensor {outside.name!r} in {label}"
        )
    if base_dir is not None:
        ir.external_data.set_base_dir(model.graph, base_dir)
    check_external_data(model, label)
    return _with_short_domain(model)


def _with_short_domain(model: ir.Model) -> ir.Model:
    """Return the model with the standard operator set under its short name, as onnx-ir names its nodes."""
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        if "ai.onnx" in imports:
            imports.setdefault("", imports.pop("ai.onnx"))
    return model
