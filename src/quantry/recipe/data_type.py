"""The number types a tensor can be quantized to."""

import enum
from functools import cache

# Bits of one element and elements of one block.
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


@cache
def _bits(name: str) -> int:
    if name in _BLOCK_FORMATS:
        return _BLOCK_FORMATS[name][0]
    return int("".join(letter for letter in name if letter.isdigit()))


class DataType(enum.Enum):
    """A type of the quantized tensor; the value is its spelling in recipes."""

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
        """Whether values lie on an integer grid with a scale and a zero point, which calibration finds."""
        return self not in (DataType.FLOAT16, DataType.BFLOAT16) and not self.is_block

    @property
    def is_block(self) -> bool:
        """Whether neighbouring values share an exponent, which is found at run time."""
        return self.value in _BLOCK_FORMATS

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return not self.value.startswith("u")

    @property
    def bits(self) -> int:
        """Width of one element in bits; of block formats without the shared exponent."""
        return _bits(self.value)

    @property
    def block_size(self) -> int:
        """Number of values that share an exponent where nothing else is asked for; block formats only."""
        return _BLOCK_FORMATS[self.value][1]

    @property
    def lowest(self) -> int:
        """Smallest integer of the type; integer types only."""
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def highest(self) -> int:
        """Largest integer of the type; integer types only."""
        return (1 << (self.bits - 1)) - 1 if self.is_signed else (1 << self.bits) - 1
