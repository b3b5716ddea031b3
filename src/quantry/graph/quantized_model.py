"""`QuantizedModel`, the value that the emit stage returns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import onnx_ir as ir

from quantry.graph.float_model import FloatModel
from quantry.graph.save import ModelParts, serialize, write_model, write_parts
from quantry.memo import Blob, Digest, fingerprint
from quantry.notes import Note


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """A quantized model, ready to be written.

    Attributes:
        graph: The graph, or a function that creates it on first access.
        notes: Messages for the user.
        make_parts: Creates the serialized model if that is possible without the graph; may return None.
    """

    graph: ir.Model | Callable[[], ir.Model]
    notes: tuple[Note, ...] = field(default=(), compare=False)
    make_parts: Callable[[], ModelParts | None] | None = None

    @cached_property
    def model(self) -> ir.Model:
        """The graph. Read-only by convention."""
        return self.graph if isinstance(self.graph, ir.Model) else self.graph()

    @cached_property
    def parts(self) -> ModelParts | None:
        """The serialized model in parts, or None if it must be written from the graph."""
        return None if self.make_parts is None else self.make_parts()

    def to_bytes(self) -> bytes:
        """Return the ONNX file's bytes; models over 2 GB can only be saved to a path."""
        return serialize(self.model) if self.parts is None else b"".join(self.parts.chunks())

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write the model, atomically.

        Args:
            path: The file; weights of large models go to a second file next to it.

        Returns:
            The files written.
        """
        return write_model(self.model, path) if self.parts is None else write_parts(self.parts, path)

    def to_blob(self) -> Blob | None:
        """Return the stored form, or None if the weights are too large to store."""
        return self._stored

    def __fingerprint__(self) -> Digest:
        """Return the content digest."""
        blob = self._stored
        return FloatModel(self.model).__fingerprint__() if blob is None else fingerprint(blob.digest())

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the model that `to_blob` stored."""
        stored = FloatModel.from_blob(blob)
        return cls(stored.model, stored.notes)

    @cached_property
    def _stored(self) -> Blob | None:
        # FloatModel and QuantizedModel have the same stored form. It is cached because creating it quantizes and packs
        # every weight.
        return FloatModel(self.model, self.notes).to_blob()
