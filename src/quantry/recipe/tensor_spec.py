"""What one kind of tensor is quantized to."""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked
from quantry.recipe.data_type import DataType
from quantry.recipe.granularity import Granularity, PerBlock, PerGroup, PerTensor
from quantry.recipe.scale_kind import FloatScale, PowerOfTwoScale, ScaleKind

_GROUPED = (DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8)


@dataclass(frozen=True)
class TensorSpec(Checked):
    """Type, symmetry, granularity and kind of scale.

    Attributes:
        dtype: Type of the quantized values.
        symmetric: True fixes the zero point at the centre of the type (0 for signed, 2**(bits-1) for unsigned types).
        granularity: One scale for the tensor, or one for each channel or group of values.
        scale: Any float, or a power of two.
    """

    dtype: DataType = DataType.INT8
    symmetric: bool = True
    granularity: Granularity = PerTensor()
    scale: ScaleKind = FloatScale()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dtype.is_integer and (not self.symmetric or isinstance(self.scale, PowerOfTwoScale)):
            raise RecipeError(
                f"TensorSpec of {self.dtype.value} has neither zero point nor scale, so symmetric must be True and "
                f"scale FloatScale(); got symmetric={self.symmetric} and scale={self.scale}"
            )
        if self.dtype.is_block != isinstance(self.granularity, PerBlock):
            raise RecipeError(
                "TensorSpec.granularity must be PerBlock() for the block formats and for no other type, got "
                f"{self.granularity} for {self.dtype.value}"
            )
        if isinstance(self.granularity, PerGroup) and self.dtype not in _GROUPED:
            names = ", ".join(dtype.value for dtype in _GROUPED)
            raise RecipeError(
                f"TensorSpec.granularity can be PerGroup() for {names} only, which kernels unpack group by group; got "
                f"{self.dtype.value}; use PerChannel()"
            )
