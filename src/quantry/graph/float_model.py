"""`FloatModel`, the value that the prepare and equalize stages return."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.graph.save import serialize, weight_bytes
from quantry.graph.weights import release, structure_proto
from quantry.memo import Blob, Digest, fingerprint, fingerprint_array
from quantry.notes import Note

KEEP_BELOW_BYTES = 256_000_000
"""Models with larger weights are not stored; they are prepared again when needed."""


@dataclass(frozen=True)
class InputSignature:
    """Name, type and shape of one input of a model.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        shape: One entry per axis: its length, the name of a symbolic axis, or None if unknown.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, eq=False)
class FloatModel:
    """A float model ready to be observed and quantized.

    Attributes:
        model: The graph. Read-only by convention: to edit it, call ``model.clone()`` first.
        notes: Messages for the user about what the stage did. Not part of the identity.
    """

    model: ir.Model
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(self.notes))

    @property
    def inputs(self) -> tuple[InputSignature, ...]:
        """The inputs that must be fed, in order, without initializers."""
        return input_signatures(self.model)

    @property
    def opset(self) -> int:
        """Version of the standard operator set that the model imports."""
        return self.model.opset_imports[""]

    def to_blob(self) -> Blob | None:
        """Return the stored form, or None if the weights are too large to store."""
        if weight_bytes(self.model) >= KEEP_BELOW_BYTES:
            return None
        return Blob(files={"model.onnx": serialize(self.model)}, notes=self.notes)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the model that ``to_blob`` stored."""
        # Imported here because load.py imports this module.
        from quantry.graph.load import read_model

        return cls(read_model(blob.files["model.onnx"]), blob.notes)

    def __fingerprint__(self) -> Digest:
        """Return the content digest: structure and weights, without the notes; equal for new and stored models."""
        return self._digest

    @cached_property
    def _digest(self) -> Digest:
        return model_fingerprint(self.model)


def input_signatures(model: ir.Model) -> tuple[InputSignature, ...]:
    """Return name, type and shape of every graph input that is not an initializer.

    Raises:
        ModelError: An input is not a tensor, or its type or rank is not declared.
    """
    return tuple(_signature(value) for value in model.graph.inputs if value.name not in model.graph.initializers)


def _signature(value: ir.Value) -> InputSignature:
    if value.dtype is None or value.shape is None:
        raise ModelError(
            f"every input must be a tensor with declared type and rank, got {value.type}; input {value.name!r}"
        )
    shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return InputSignature(value.name or "", np.dtype(value.dtype.numpy()), shape)


def model_fingerprint(model: ir.Model) -> Digest:
    """Return the content digest of a graph: its structure without weights, and each weight, read one at a time."""
    proto, removed = structure_proto(model, keep_below=0)
    weights = tuple((index, name, _tensor_digest(tensor)) for (index, name), tensor in removed.items())
    return fingerprint((proto.SerializeToString(deterministic=True), weights))


def _tensor_digest(tensor: ir.TensorProtocol) -> Digest:
    digest = fingerprint_array(tensor.numpy())
    release(tensor)
    return digest
