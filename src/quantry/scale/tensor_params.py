"""Scale, zero point and type of one quantized tensor."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError
from quantry.recipe import DataType

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class TensorParams:
    """How the real numbers of one tensor map to integers: ``real = (integer - zero_point) * scale``.

    Attributes:
        dtype: Integer type of the quantized values.
        scale: float32, shape () for one scale or [C] for one scale for each index along `axis`; of groups, the tensor's
            shape with `axis` divided by the size of a group, rounded up. Positive and normal.
        zero_point: int64, same shape as `scale`; within the limits, so that 0.0 is represented exactly.
        axis: The channel axis, or the axis along which groups lie, or None for one scale.
        limits: Smallest and largest integer in use where these are fewer than the type has; None uses the whole type.
        group: How many neighbours along `axis` share a scale; None where each index has its own.
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
        """Smallest integer in use; smaller results saturate to it."""
        return self.dtype.lowest if self.limits is None else self.limits[0]

    @property
    def highest(self) -> int:
        """Largest integer in use; larger results saturate to it."""
        return self.dtype.highest if self.limits is None else self.limits[1]

    def _check(self) -> None:
        if not self.dtype.is_integer:
            raise InternalError(f"TensorParams.dtype must be an integer type, got {self.dtype.value}")
        dimensions = 0 if self.axis is None else 1
        fits = self.scale.ndim == dimensions if self.group is None else self.axis in range(self.scale.ndim)
        if not fits or self.zero_point.shape != self.scale.shape:
            needed = f"{dimensions} dimensions" if self.group is None else "the tensor's dimensions"
            raise InternalError(
                f"TensorParams with axis {self.axis} needs scale and zero point with {needed}, got shapes "
                f"{self.scale.shape} and {self.zero_point.shape}"
            )
        if not (np.isfinite(self.scale) & (self.scale >= _SMALLEST_NORMAL)).all():
            raise InternalError(f"TensorParams.scale must be positive, normal and finite, got {self.scale}")
        if not ((self.zero_point >= self.lowest) & (self.zero_point <= self.highest)).all():
            raise InternalError(
                f"TensorParams.zero_point must be in [{self.lowest}, {self.highest}], got {self.zero_point}"
            )


def _frozen(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    array.setflags(write=False)
    return array
