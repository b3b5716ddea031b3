"""What a tuning step returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantry.memo import Blob
from quantry.numerics.tensor_params import QuantParams

_WEIGHT = "weight/"
_PARAMS = "params/"


@dataclass(frozen=True, eq=False)
class Tuned:
    """New values of weights and biases, and the parameters they are to be rounded with.

    Attributes:
        weights: float32 arrays by initializer name, only of those that changed. The ordinary rounding of the emit stage
            turns them into the tuned integers.
        params: Scales and zero points of all tensors, changed or not.
        notes: What was done, and what its user should know.
    """

    weights: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    params: QuantParams = QuantParams({}, ())
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", MappingProxyType(dict(self.weights)))
        object.__setattr__(self, "notes", tuple(self.notes))
        # The notes of parameters belong to the stage that computed them.
        object.__setattr__(self, "params", replace(self.params, notes=()))

    def to_blob(self) -> Blob:
        """Return the stored form."""
        params = self.params.to_blob()
        arrays: dict[str, npt.NDArray[Any]] = {_PARAMS + name: array for name, array in params.arrays.items()}
        arrays |= {_WEIGHT + name: np.asarray(array, np.float32) for name, array in self.weights.items()}
        meta = {"weights": list(self.weights), "params": dict(params.meta)}
        return Blob(meta=meta, arrays=arrays, notes=self.notes)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        meta: Any = blob.meta
        arrays = {name.removeprefix(_PARAMS): blob.arrays[name] for name in blob.arrays if name.startswith(_PARAMS)}
        return cls(
            weights={name: blob.arrays[_WEIGHT + name] for name in meta["weights"]},
            params=QuantParams.from_blob(Blob(meta["params"], arrays)),
            notes=blob.notes,
        )
