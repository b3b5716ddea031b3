"""How many scales one tensor has."""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked
from quantry.recipe.data_type import DataType

GROUP_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class PerTensor:
    """One scale and one zero point for the whole tensor."""


@dataclass(frozen=True)
class PerChannel(Checked):
    """One scale and one zero point for each index along one axis.

    Attributes:
        axis: The axis; None takes the axis the operator's rule names (output channels of a weight).
    """

    axis: int | None = None


@dataclass(frozen=True)
class PerBlock(Checked):
    """One shared exponent for each run of values along one axis, as block number formats have it.

    Attributes:
        size: Values in a block; None takes the format's own (8 of BFP16, 16 of MX4, MX6 and MX9, 32 of the others).
        axis: The axis; a tensor with fewer axes takes its last one.
    """

    size: int | None = None
    axis: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None and (self.size < 2 or self.size % 2):
            raise RecipeError(f"PerBlock.size must be an even number from 2 on, got {self.size!r}")
        if self.axis < 0:
            raise RecipeError(f"PerBlock.axis must not be negative, got {self.axis!r}")

    def size_for(self, dtype: DataType) -> int:
        """Return the size of a block of a format."""
        return dtype.block_size if self.size is None else self.size


@dataclass(frozen=True)
class PerGroup(Checked):
    """One scale and one zero point for each run of values along the axis that an operator sums over; weights only.

    Attributes:
        size: Values in a group, a power of two from 16 to 256, as the runtime's kernels have it; the last group of a
            row may be shorter.
    """

    size: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in GROUP_SIZES:
            raise RecipeError(f"PerGroup.size must be one of {GROUP_SIZES}, got {self.size!r}")


Granularity = PerTensor | PerChannel | PerBlock | PerGroup
