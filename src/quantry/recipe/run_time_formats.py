"""Formats whose activations are float tensors: quantized while the model runs, or not at all."""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked

ACCURACY_LEVELS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Dynamic:
    """Integer products whose activations are quantized while the model runs, each tensor by its own extremes.

    Written as DynamicQuantizeLinear, ConvInteger and MatMulInteger. Needs no calibration; goes with
    ``PlanOptions.weights_only``.
    """


@dataclass(frozen=True)
class MatMulNBits(Checked):
    """Products of float activations with packed 4- or 8-bit weights, as com.microsoft MatMulNBits.

    Needs no calibration; goes with ``PlanOptions.weights_only`` and weights of granularity ``PerGroup``.

    Attributes:
        accuracy_level: In which precision the kernel may compute: 0 its own choice, which is that of the input; 1
            float32, 2 float16, 3 bfloat16, 4 int8, which is fastest and rounds the activations too.
    """

    accuracy_level: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accuracy_level not in ACCURACY_LEVELS:
            raise RecipeError(
                f"MatMulNBits.accuracy_level must be one of {ACCURACY_LEVELS}, got {self.accuracy_level!r}"
            )
