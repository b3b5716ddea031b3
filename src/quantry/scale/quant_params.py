"""The value of the scale stage: parameters of every quantized tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from quantry.memo import Blob
from quantry.recipe import DataType
from quantry.scale.tensor_params import TensorParams


@dataclass(frozen=True, eq=False)
class QuantParams:
    """Parameters of every quantized tensor.

    Attributes:
        tensors: By tensor name: activations, weights and biases.
        notes: What the user should know, such as values that do not fit; empty when all is well.
    """

    tensors: Mapping[str, TensorParams] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        object.__setattr__(self, "notes", tuple(self.notes))

    def to_blob(self) -> Blob:
        """Return what the store keeps: all scales in one array and all zero points in another."""
        entries = [
            {
                "name": name,
                "dtype": params.dtype.value,
                "size": params.scale.size,
                "axis": params.axis,
                "limits": None if params.limits is None else list(params.limits),
                **({} if params.group is None else {"group": params.group, "shape": list(params.scale.shape)}),
            }
            for name, params in self.tensors.items()
        ]
        scales = [params.scale.ravel() for params in self.tensors.values()]
        zero_points = [params.zero_point.ravel() for params in self.tensors.values()]
        return Blob(
            meta={"tensors": entries, "notes": list(self.notes)},
            arrays={
                "scales": np.concatenate([np.empty(0, np.float32), *scales]),
                "zero_points": np.concatenate([np.empty(0, np.int64), *zero_points]),
            },
        )

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on.

        Args:
            blob: What the store kept.
        """
        meta: Any = blob.meta
        ends = np.cumsum([entry["size"] for entry in meta["tensors"]], dtype=np.int64)
        tensors = {}
        for entry, end in zip(meta["tensors"], ends, strict=True):
            part = slice(int(end) - entry["size"], int(end))
            shape = tuple(entry.get("shape", () if entry["axis"] is None else (entry["size"],)))
            tensors[entry["name"]] = TensorParams(
                dtype=DataType(entry["dtype"]),
                scale=blob.arrays["scales"][part].reshape(shape),
                zero_point=blob.arrays["zero_points"][part].reshape(shape),
                axis=entry["axis"],
                limits=None if entry["limits"] is None else (entry["limits"][0], entry["limits"][1]),
                group=entry.get("group"),
            )
        return cls(tensors, tuple(meta["notes"]))
