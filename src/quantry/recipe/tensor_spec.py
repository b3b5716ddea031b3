"""How a tensor is quantized: data type, granularity, kind of scale, and the choices for biases."""

import enum
from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked

# Bits of one element and elements of one block, as AMD and the OCP microscaling specification define them.
_BLOCK_FORMATS = {
    "bfp16": (8, 8),
    "mx4": (3, 16),
    "mx6": (5, 16),
    "mx9": (8, 16),
    "mxfp8e5m2": (8, 32),
    "mxfp8e4m3": (8, 32),
    "mxfp6e3m2": (6, 32),
    "mxfp6e2m3": (6, 32),
    "mxfp4e2m1": (4, 32),
    "mxint8": (8, 32),
}

# Largest finite values of the 8-bit floats, as OCP's "8-bit floating point specification" defines them.
_FLOAT8_MAXIMA = {"float8e4m3fn": 448, "float8e5m2": 57344}


def _bits(name: str) -> int:
    if name in _BLOCK_FORMATS:
        return _BLOCK_FORMATS[name][0]
    if name in _FLOAT8_MAXIMA:
        return 8
    return int("".join(letter for letter in name if letter.isdigit()))


class DataType(enum.Enum):
    """A data type of quantized tensors; the value is its spelling in recipes."""

    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E5M2 = "float8e5m2"
    BFP16 = "bfp16"
    MX4 = "mx4"
    MX6 = "mx6"
    MX9 = "mx9"
    MXFP8E5M2 = "mxfp8e5m2"
    MXFP8E4M3 = "mxfp8e4m3"
    MXFP6E3M2 = "mxfp6e3m2"
    MXFP6E2M3 = "mxfp6e2m3"
    MXFP4E2M1 = "mxfp4e2m1"
    MXINT8 = "mxint8"

    @property
    def is_integer(self) -> bool:
        """Whether the type is an integer, with a scale and a zero point from calibration."""
        return self not in (DataType.FLOAT16, DataType.BFLOAT16) and not self.is_block and not self.is_float8

    @property
    def is_float8(self) -> bool:
        """Whether the type is an 8-bit float, with a scale from calibration and zero point 0."""
        return self.value in _FLOAT8_MAXIMA

    @property
    def has_scale(self) -> bool:
        """Whether the type has a scale from calibration: integers and 8-bit floats."""
        return self.is_integer or self.is_float8

    @property
    def is_block(self) -> bool:
        """Whether neighbouring values share an exponent, which is computed at run time."""
        return self.value in _BLOCK_FORMATS

    @property
    def is_signed(self) -> bool:
        """Whether the type has negative values."""
        return not self.value.startswith("u")

    @property
    def bits(self) -> int:
        """Width of one element in bits, without the shared exponent of block formats."""
        return _bits(self.value)

    @property
    def block_size(self) -> int:
        """Default number of values that share an exponent; block formats only."""
        return _BLOCK_FORMATS[self.value][1]

    @property
    def lowest(self) -> int:
        """Smallest integer of the type, or the smallest finite value of an 8-bit float; types with a scale only."""
        if self.is_float8:
            return -self.highest
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def highest(self) -> int:
        """Largest integer of the type, or the largest finite value of an 8-bit float; types with a scale only."""
        if self.is_float8:
            return _FLOAT8_MAXIMA[self.value]
        return (1 << (self.bits - 1)) - 1 if self.is_signed else (1 << self.bits) - 1


# The block sizes of onnxruntime's MatMulNBits.
GROUP_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class PerTensor:
    """One scale and one zero point for the whole tensor."""


@dataclass(frozen=True)
class PerChannel(Checked):
    """One scale and one zero point for each channel.

    Attributes:
        axis: The channel axis; None takes the operator's own (output channels of a weight).
    """

    axis: int | None = None


@dataclass(frozen=True)
class PerBlock(Checked):
    """One shared exponent for each block of values along an axis, as block formats have it.

    Attributes:
        size: Values in a block; None takes the format's own (8 for BFP16, 16 for MX4, MX6 and MX9, 32 for the others).
        axis: The axis; a tensor with fewer axes takes its last one.
    """

    size: int | None = None
    axis: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        # MX4, MX6 and MX9 shift neighbouring values in pairs.
        if self.size is not None and (self.size < 2 or self.size % 2):
            raise RecipeError(f"PerBlock.size must be an even number, at least 2, got {self.size!r}")
        if self.axis < 0:
            raise RecipeError(f"PerBlock.axis must not be negative, got {self.axis!r}")

    def size_for(self, dtype: DataType) -> int:
        """Return the size of a block for a format."""
        return dtype.block_size if self.size is None else self.size


@dataclass(frozen=True)
class PerGroup(Checked):
    """One scale and one zero point for each group of values along the axis of summation; weights only.

    Attributes:
        size: Values in a group, a power of two from 16 to 256, which the runtime's kernels support; the last group of
            a row may be shorter.
    """

    size: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in GROUP_SIZES:
            raise RecipeError(f"PerGroup.size must be one of {GROUP_SIZES}, got {self.size!r}")


Granularity = PerTensor | PerChannel | PerBlock | PerGroup


@dataclass(frozen=True)
class FloatScale:
    """Any positive float32."""


@dataclass(frozen=True)
class PowerOfTwoScale:
    """``2**-n`` with an integer number of fraction bits ``n``: integer NPUs shift instead of multiplying."""


ScaleKind = FloatScale | PowerOfTwoScale


_GROUPED = (DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8)


@dataclass(frozen=True)
class TensorSpec(Checked):
    """Data type, symmetry, granularity and kind of scale of a tensor.

    Attributes:
        dtype: Type of the quantized values.
        symmetric: Fix the zero point at the centre of the type: 0 for signed, ``2**(bits - 1)`` for unsigned types.
        granularity: One scale for the tensor, or one per channel, block or group.
        scale: Any float, or a power of two.
    """

    dtype: DataType = DataType.INT8
    symmetric: bool = True
    granularity: Granularity = PerTensor()
    scale: ScaleKind = FloatScale()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dtype.is_integer and (not self.symmetric or isinstance(self.scale, PowerOfTwoScale)):
            lacking = "no zero point" if self.dtype.is_float8 else "no zero point and no scale"
            raise RecipeError(
                f"TensorSpec of {self.dtype.value} must have symmetric=True and scale=FloatScale(), because the type "
                f"has {lacking}; got symmetric={self.symmetric} and scale={self.scale}"
            )
        if self.dtype.is_block != isinstance(self.granularity, PerBlock):
            raise RecipeError(
                "TensorSpec.granularity must be PerBlock() for block formats and only for these, got "
                f"{self.granularity} for {self.dtype.value}"
            )
        if isinstance(self.granularity, PerGroup) and self.dtype not in _GROUPED:
            names = ", ".join(dtype.value for dtype in _GROUPED)
            raise RecipeError(
                f"TensorSpec.granularity can be PerGroup() only for {names}, which kernels unpack group by group; got "
                f"{self.dtype.value}; use PerChannel()"
            )


@dataclass(frozen=True)
class DerivedBias:
    """int32 bias with scale = input scale x weight scale and zero point 0: the grid of the accumulator."""


@dataclass(frozen=True)
class OwnBias(Checked):
    """Bias with its own scale, which integer NPUs with narrow bias memories need.

    Attributes:
        spec: Data type and scale of the bias.
    """

    spec: TensorSpec = TensorSpec()


@dataclass(frozen=True)
class FloatBias:
    """Bias stays float."""


Bias = DerivedBias | OwnBias | FloatBias
