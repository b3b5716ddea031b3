"""What biases become."""

from dataclasses import dataclass

from quantry.recipe.checked import Checked
from quantry.recipe.tensor_spec import TensorSpec


@dataclass(frozen=True)
class DerivedBias:
    """int32 bias with scale = input scale x weight scale and zero point 0, the accumulator's own grid."""


@dataclass(frozen=True)
class OwnBias(Checked):
    """Bias quantized by itself, as integer NPUs with narrow bias memories want it.

    Attributes:
        spec: Type and scale of the bias.
    """

    spec: TensorSpec = TensorSpec()


@dataclass(frozen=True)
class FloatBias:
    """Bias stays float."""


Bias = DerivedBias | OwnBias | FloatBias
