"""New values of one layer's constants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantry.memo import Blob


@dataclass(frozen=True, eq=False)
class LayerConstants:
    """What tuning made of one layer.

    Attributes:
        values: float32 arrays by initializer name; empty where nothing better was found.
        before: Mean squared error of the layer's output with plain rounding.
        after: The same with the new values.
    """

    values: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    before: float = 0.0
    after: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(meta={"before": self.before, "after": self.after}, arrays=dict(self.values))

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        meta: Any = blob.meta
        return cls(dict(blob.arrays), meta["before"], meta["after"])
