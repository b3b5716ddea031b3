"""Scale, zero point and type of one quantized tensor, and of all tensors of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError
from quantry.memo import Blob
from quantry.notes import Note
from quantry.numerics.power_of_two import SMALLEST_EXPONENT, position_of, scale_at
from quantry.recipe import DataType

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class TensorParams:
    """How the real numbers of one tensor map to integers: ``real = (integer - zero_point) * scale``.

    Attributes:
        dtype: Type of the quantized values: integers or 8-bit floats.
        scale: float32, shape () for one scale, [C] for one scale per index along `axis`; for groups, the tensor's shape
            with `axis` divided by the group size, rounded up. Normal, and positive except for groups.
        zero_point: int64, same shape as `scale`; within the limits, so that 0.0 is represented exactly.
        axis: The channel axis, or the axis of the groups, or None for one scale.
        limits: Smallest and largest integer in use; None uses the whole type.
        group: Number of neighbours along `axis` that share a scale; None if each index has its own.
    """

    dtype: DataType
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int | None = None
    limits: tuple[int, int] | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _frozen(np.array(self.scale, dtype=np.float32)))
        object.__setattr__(self, "zero_point", _frozen(np.array(self.zero_point, dtype=np.int64)))
        self._check()

    @property
    def lowest(self) -> int:
        """Smallest integer in use; smaller results are clipped to it."""
        return self.dtype.lowest if self.limits is None else self.limits[0]

    @property
    def highest(self) -> int:
        """Largest integer in use; larger results are clipped to it."""
        return self.dtype.highest if self.limits is None else self.limits[1]

    @property
    def position(self) -> int | None:
        """Return p for one scale of ``2**-p``; None for several scales and for any other scale."""
        return position_of(self.scale.item()) if self.axis is None else None

    def at_position(self, position: int) -> "TensorParams":
        """Return the parameters with scale ``2**-position``, or the nearest normal one, and the same zero point."""
        largest = 127 - (self.highest - self.lowest).bit_length()
        return replace(self, scale=np.array(scale_at(min(max(position, -largest), -SMALLEST_EXPONENT)), np.float32))

    def _check(self) -> None:
        if not self.dtype.has_scale:
            raise InternalError(f"TensorParams.dtype must be an integer type or an 8-bit float, got {self.dtype.value}")
        dimensions = 0 if self.axis is None else 1
        fits = self.scale.ndim == dimensions if self.group is None else self.axis in range(self.scale.ndim)
        if not fits or self.zero_point.shape != self.scale.shape:
            needed = f"{dimensions} dimensions" if self.group is None else "the tensor's dimensions"
            raise InternalError(
                f"TensorParams with axis {self.axis} needs scale and zero point with {needed}, got shapes "
                f"{self.scale.shape} and {self.zero_point.shape}"
            )
        size = self.scale if self.group is None else np.abs(self.scale)  # groups may have negative scales
        if not (np.isfinite(size) & (size >= _SMALLEST_NORMAL)).all():
            raise InternalError(f"TensorParams.scale must be positive, normal and finite, got {self.scale}")
        if not ((self.zero_point >= self.lowest) & (self.zero_point <= self.highest)).all():
            raise InternalError(
                f"TensorParams.zero_point must be in [{self.lowest}, {self.highest}], got {self.zero_point}"
            )


def _frozen(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class QuantParams:
    """Parameters of every quantized tensor.

    Attributes:
        tensors: By tensor name: activations, weights and biases.
        notes: Messages for the user, such as biases that do not fit; often empty.
    """

    tensors: Mapping[str, TensorParams] = field(default_factory=dict)
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        object.__setattr__(self, "notes", tuple(self.notes))

    def to_blob(self) -> Blob:
        """Return the stored form: all scales in one array and all zero points in another."""
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
            meta={"tensors": entries},
            arrays={
                "scales": np.concatenate([np.empty(0, np.float32), *scales]),
                "zero_points": np.concatenate([np.empty(0, np.int64), *zero_points]),
            },
            notes=self.notes,
        )

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on.

        Args:
            blob: The stored form.
        """
        meta: Any = blob.meta
        ends = np.cumsum([entry["size"] for entry in meta["tensors"]], dtype=np.int64)
        tensors = {}
        for entry, end in zip(meta["tensors"], ends, strict=True):
            extent = slice(int(end) - entry["size"], int(end))
            shape = tuple(entry.get("shape", () if entry["axis"] is None else (entry["size"],)))
            tensors[entry["name"]] = TensorParams(
                dtype=DataType(entry["dtype"]),
                scale=blob.arrays["scales"][extent].reshape(shape),
                zero_point=blob.arrays["zero_points"][extent].reshape(shape),
                axis=entry["axis"],
                limits=None if entry["limits"] is None else (entry["limits"][0], entry["limits"][1]),
                group=entry.get("group"),
            )
        return cls(tensors, blob.notes)
