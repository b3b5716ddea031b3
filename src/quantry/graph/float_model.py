"""The value that the prepare and equalize stages return: a clean float graph, and what was done to it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.graph.save import serialize, weight_bytes
from quantry.graph.weights import release, structure_proto
from quantry.memo import Blob, Digest, fingerprint, fingerprint_array

KEEP_BELOW_BYTES = 256_000_000
"""Models with more weight than this are not kept in a store; they are prepared again when they are needed."""


@dataclass(frozen=True)
class InputSignature:
    """Name, type and shape of one real input of a model.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        shape: One entry per axis: its length, the name of a symbolic axis, or None where nothing is known.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, eq=False)
class FloatModel:
    """A float model ready to be measured and quantized.

    Attributes:
        model: The graph. Read-only by convention: whoever edits calls ``model.clone()`` first.
        notes: What was done to it, and what its user should know.
    """

    model: ir.Model
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(self.notes))

    @property
    def inputs(self) -> tuple[InputSignature, ...]:
        """The inputs a caller must feed, in order; initializers are not among them."""
        return input_signatures(self.model)

    @property
    def opset(self) -> int:
        """Version of the standard operator set that the model imports."""
        return self.model.opset_imports[""]

    def to_blob(self) -> Blob | None:
        """Return the stored form, or None when the weights are too large to keep."""
        if weight_bytes(self.model) >= KEEP_BELOW_BYTES:
            return None
        return Blob(meta={"notes": list(self.notes)}, files={"model.onnx": serialize(self.model)})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the model that ``to_blob`` stored."""
        # Imported here because reading a model needs the preflight, which needs this module's neighbours.
        from quantry.graph.load import read_model

        notes = blob.meta["notes"]
        assert isinstance(notes, list)
        return cls(read_model(blob.files["model.onnx"]), tuple(str(note) for note in notes))

    def __fingerprint__(self) -> Digest:
        """Return the content digest: structure, each weight, and the notes; equal for fresh and stored models."""
        return self._digest

    @cached_property
    def _digest(self) -> Digest:
        return fingerprint((self._graph_digest, self.notes))

    @cached_property
    def _graph_digest(self) -> Digest:
        return model_fingerprint(self.model)


class BareModel(FloatModel):
    """A float model without its notes, for stages that read the graph alone.

    Equalization that finds nothing to do leaves a note and the graph as it was. Stages behind it that are given the
    bare model know it by its graph, so that they run once for both.
    """

    @classmethod
    def of(cls, model: FloatModel) -> Self:
        """Return a model without its notes; both share the graph, and its digest is taken once."""
        bare = cls(model.model)
        bare.__dict__["_graph_digest"] = model._graph_digest
        return bare

    def to_blob(self) -> None:
        """Return None: it is sooner made from the model that has the notes than read."""
        return

    @cached_property
    def _digest(self) -> Digest:
        return fingerprint(("bare", self._graph_digest))


def input_signatures(model: ir.Model) -> tuple[InputSignature, ...]:
    """Return name, type and shape of every graph input that is not an initializer.

    Raises:
        ModelError: If an input is no tensor or its type or rank is not declared.
    """
    return tuple(_signature(value) for value in model.graph.inputs if value.name not in model.graph.initializers)


def _signature(value: ir.Value) -> InputSignature:
    if value.dtype is None or value.shape is None:
        raise ModelError(
            f"every input must be a tensor of declared type and rank, got {value.type}; input {value.name!r}"
        )
    shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return InputSignature(value.name or "", np.dtype(value.dtype.numpy()), shape)


def model_fingerprint(model: ir.Model) -> Digest:
    """Return the content digest of a graph: its structure without weights, and each weight, read one at a time."""
    proto, taken = structure_proto(model, keep_below=0)
    weights = tuple((index, name, _tensor_digest(tensor)) for (index, name), tensor in taken.items())
    return fingerprint((proto.SerializeToString(deterministic=True), weights))


def _tensor_digest(tensor: ir.TensorProtocol) -> Digest:
    digest = fingerprint_array(tensor.numpy())
    release(tensor)
    return digest
