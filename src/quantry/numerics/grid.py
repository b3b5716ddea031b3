"""Both sides of quantization: the integers that a tensor may use, and the real interval that it represents."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.errors import RecipeError
from quantry.numerics.float8 import float8_levels
from quantry.recipe import DataType, PowerOfTwoScale, TensorSpec

# What the end of a range becomes in E5M2. The scale of a float only chooses which exponents are used, so 57344 / 2**8
# loses nothing: 22 octaves remain below it. Values beyond the observed range do not saturate, and biases that
# onnxruntime quantizes on its own, with the product of two scales, stay within int32.
_E5M2_STEPS = 224


@dataclass(frozen=True)
class Grid:
    """The integers, or the values of an 8-bit float, that a tensor may use, and which scales are allowed.

    Values beyond the ends are clipped to `lowest` and `highest`, as QuantizeLinear does. The error of an int8 tensor
    therefore counts -128 as representable, although a symmetric scale is computed from 127 steps on either side.

    Attributes:
        dtype: Integer type or 8-bit float.
        symmetric: Whether the zero point is fixed at `centre`.
        power_of_two: Whether the scale must be a power of two.
        reduced: Whether one bit less is used, such as ``-64..64`` or ``0..127`` of 8 bits.
    """

    dtype: DataType
    symmetric: bool
    power_of_two: bool = False
    reduced: bool = False

    @classmethod
    def of(cls, spec: TensorSpec, *, reduced: bool = False) -> "Grid":
        """Return the grid of a specification.

        Args:
            spec: Type, symmetry and kind of scale.
            reduced: Use one bit less.

        Raises:
            RecipeError: The type has no scale, or has no bit to spare.
        """
        if not spec.dtype.has_scale:
            raise RecipeError(
                f"scales need an integer type or an 8-bit float, got {spec.dtype.value}; in the scale stage"
            )
        if reduced and not spec.dtype.is_integer:
            raise RecipeError(f"scale.reduce_range needs integer weights, got {spec.dtype.value}; in the scale stage")
        return cls(spec.dtype, spec.symmetric, isinstance(spec.scale, PowerOfTwoScale), reduced)

    @cached_property
    def lowest(self) -> int:
        """Smallest integer in use."""
        if not self.reduced:
            return self.dtype.lowest
        return -(1 << (self.dtype.bits - 2)) if self.dtype.is_signed else 0

    @cached_property
    def highest(self) -> int:
        """Largest integer in use."""
        if not self.reduced:
            return self.dtype.highest
        return 1 << (self.dtype.bits - 2) if self.dtype.is_signed else (1 << (self.dtype.bits - 1)) - 1

    @cached_property
    def levels(self) -> npt.NDArray[np.float64]:
        """All values in use, ascending, in units of the scale."""
        if self.dtype.is_float8:
            return float8_levels(self.dtype)
        return np.arange(self.lowest, self.highest + 1, dtype=np.float64)

    @cached_property
    def centre(self) -> int:
        """Zero point of a symmetric tensor."""
        return 0 if self.dtype.is_signed else (self.highest + 1) // 2

    @cached_property
    def steps(self) -> int:
        """Number of steps between the ends, or on either side of the centre if symmetric."""
        if self.dtype is DataType.FLOAT8E5M2:
            return _E5M2_STEPS
        if self.symmetric:
            return min(self.centre - self.lowest, self.highest - self.centre)
        return self.highest - self.lowest

    @cached_property
    def limits(self) -> tuple[int, int] | None:
        """Smallest and largest integer in use, or None if the whole type is used."""
        return (self.lowest, self.highest) if self.reduced else None


@dataclass(frozen=True, eq=False)
class Range:
    """The result of a calibration method: the interval to represent, for each channel.

    It need not contain zero; `quantry.numerics.affine.affine` extends it to zero.

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
        """Return the smallest intervals that contain these and zero."""
        return Range(np.minimum(self.low, 0.0), np.maximum(self.high, 0.0))

    def clamped(self, bounds: "Range") -> "Range":
        """Return the part of these intervals inside `bounds`.

        Args:
            bounds: One interval for each of these.
        """
        return Range(np.maximum(self.low, bounds.low), np.minimum(self.high, bounds.high))
