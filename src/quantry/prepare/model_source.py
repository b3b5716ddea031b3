"""Where a float model comes from: a file, bytes, a proto or an onnx-ir model; loaded lazily, identified by content."""

import mmap
import os
import textwrap
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir

from quantry.errors import ModelError, QuantryError
from quantry.memo import Digest, fingerprint, fingerprint_file
from quantry.prepare.external_data import check_external_data, external_files, external_tensors
from quantry.prepare.float_model import model_fingerprint
from quantry.prepare.model_bytes import parse_model, read_model_file
from quantry.prepare.proto_names import check_unique_names

ModelLike: TypeAlias = str | os.PathLike[str] | bytes | bytearray | onnx.ModelProto | ir.Model


class ModelSource(ABC):
    """A float model that is loaded when it is needed.

    Two sources with the same content are the same to every later stage: a path or a label is not identity. The content
    is hashed once and remembered on the object, so the model must not change behind a source's back.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """What messages call the model: its path, or ``in-memory model``."""

    @abstractmethod
    def load(self) -> ir.Model:
        """Return a fresh onnx-ir model; large external weights stay on disk until they are read."""

    @cached_property
    def _digest(self) -> Digest:
        try:
            return self._hash()
        except QuantryError:
            raise
        except Exception as error:
            # The libraries that read malformed tensors raise whatever they stumble over.
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
        # The key of every external tensor is in the file as text, and looking for it is far cheaper than loading the
        # model. A file that is missing or empty goes on to the loader, whose business it is to say so.
        try:
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(b"location") >= 0
        except (OSError, ValueError):
            return True


class _BytesSource(ModelSource):
    """A serialised model, complete in itself."""

    label = "in-memory model"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def load(self) -> ir.Model:
        return _load_bytes(self.content)

    def _hash(self) -> Digest:
        return fingerprint(self.content)


class _ProtoSource(ModelSource):
    """A proto that the caller holds; its tensors are shared, not copied."""

    label = "in-memory model"

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto

    def load(self) -> ir.Model:
        return _from_proto(self.proto, self.label)

    def _hash(self) -> Digest:
        return model_fingerprint(self.load())


class _GraphSource(ModelSource):
    """An onnx-ir model that the caller holds; its tensors are shared, not copied."""

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
    """Return where a model comes from, whatever form it was given in; nothing is read yet.

    Args:
        model: A path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; a source is returned as is.

    Raises:
        ModelError: If it is none of these.
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
        model: Path of an ONNX file, whose external data may lie beside it, or the bytes of one without external data.

    Raises:
        ModelNotFoundError: If there is no such file.
        ModelError: If it is no ONNX model, or its external data are missing, short or outside its folder.
    """
    return _load_bytes(model) if isinstance(model, bytes) else _load_file(Path(model))


def _load_file(path: Path) -> ir.Model:
    return _from_proto(read_model_file(path), str(path), base_dir=path.absolute().parent)


def _load_bytes(content: bytes) -> ir.Model:
    return _from_proto(parse_model(content, _BytesSource.label), _BytesSource.label)


def _from_proto(proto: onnx.ModelProto, label: str, base_dir: Path | None = None) -> ir.Model:
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ModelError(f"weights must be dense, got the sparse initializer {name!r}; store it dense; in {label}")
    check_unique_names(proto.graph, label)
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # onnx-ir wraps what it finds in its own and in builtin exceptions
        reason = textwrap.shorten(str(error.__cause__ or error), 300)
        raise ModelError(f"the model must be a consistent ONNX graph, got: {reason}; in {label}") from error
    outside = next(external_tensors(model), None)
    if base_dir is None and outside is not None:
        raise ModelError(
            f"a model given in memory must hold its weights, got external data at {str(outside.location)!r}; "
            f"pass the path of the model file; tensor {outside.name!r} in {label}"
        )
    if base_dir is not None:
        ir.external_data.set_base_dir(model.graph, base_dir)
    check_external_data(model, label)
    return _with_short_domain(model)


def _with_short_domain(model: ir.Model) -> ir.Model:
    """Return the model with the standard operator set imported under its short name, as onnx-ir names its nodes."""
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        if "ai.onnx" in imports:
            imports.setdefault("", imports.pop("ai.onnx"))
    return model
