"""The real interval that a quantized tensor is meant to represent."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Range:
    """What a calibration method answers: the ends of the interval to represent, for each channel.

    Zero need not be inside; the interval is extended to it when scale and zero point are made.

    Attributes:
        low: Lower ends, float64 [C]; C is 1 for a tensor with one scale.
        high: Upper ends, float64 [C].

    Example:
        >>> Range([-1.0], [2.0]).high
        array([2.])
    """

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", np.asarray(self.low, dtype=np.float64))
        object.__setattr__(self, "high", np.asarray(self.high, dtype=np.float64))

    @property
    def magnitude(self) -> npt.NDArray[np.float64]:
        """Largest absolute value of each interval, float64 [C]."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    def with_zero(self) -> "Range":
        """Return the smallest intervals that hold these and zero."""
        return Range(np.minimum(self.low, 0.0), np.maximum(self.high, 0.0))

    def clamped(self, bounds: "Range") -> "Range":
        """Return the part of these intervals inside `bounds`.

        Args:
            bounds: One interval for each of these.
        """
        return Range(np.maximum(self.low, bounds.low), np.minimum(self.high, bounds.high))
