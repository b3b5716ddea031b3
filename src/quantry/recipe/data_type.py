"""The number types a tensor can be quantized to."""

import enum


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

    @property
    def is_integer(self) -> bool:
        """Whether values lie on an integer grid with a scale and a zero point."""
        return self not in (DataType.FLOAT16, DataType.BFLOAT16)

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return not self.value.startswith("u")

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        return int("".join(letter for letter in self.value if letter.isdigit()))

    @property
    def lowest(self) -> int:
        """Smallest integer of the type; integer types only."""
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def highest(self) -> int:
        """Largest integer of the type; integer types only."""
        return (1 << (self.bits - 1)) - 1 if self.is_signed else (1 << self.bits) - 1
