"""Options of equalization that looks at activations."""

from dataclasses import dataclass

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe.checked import Checked

SMOOTHABLE_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose inputs can be divided channel by channel."""


@dataclass(frozen=True)
class SmoothQuant(Checked):
    """Divides the channels of an activation by factors that the weights reading it are multiplied by.

    Outliers that sit in few channels cost all others their resolution; weights have resolution to spare, most of all
    with one scale for each channel. The factors go into what makes the activation: a LayerNormalization, a linear
    layer, a constant operand. Through a gate such as SiLU, ``x * sigmoid(x)``, they go into the layer before it, and a
    multiplication gives the Sigmoid its old input back. Nowhere is the function changed.

    Attributes:
        alpha: How much of a channel's range moves into the weights, 0 to 1: the factor is
            ``max|x|**alpha / max|w|**(1 - alpha)`` for every layer (SmoothAlpha). None chooses the factors of each
            layer by the error that rounding will leave, estimated from the ranges of channels, and only where they pay.
        operators: Operator types whose inputs are looked at.
        insert: Insert a multiplication where the factors fit into nothing that is there. It helps where the tensor
            before the multiplication stays float; one that is quantized has lost its small channels by then.
        gain: With ``alpha=None``, by how much the estimated error must fall for a multiplication to be worth its time;
            what costs no operator is done from a tenth on.
        tolerance: With ``alpha=None``, no multiplication is inserted where the estimated error is below this part of
            the energy of the layer's output; 0.001 is 30 dB.
        sweeps: How often to go through the model. Where a weight has one scale, the factors before and behind a layer
            depend on each other, and further sweeps bring them together.
    """

    alpha: float | None = None
    operators: tuple[str, ...] = SMOOTHABLE_OPERATORS
    insert: bool = False
    gain: float = 4.0
    tolerance: float = 0.001
    sweeps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise RecipeError(f"SmoothQuant.alpha must be in [0, 1], or None for the best of each, got {self.alpha!r}")
        if not self.gain >= 1:
            raise RecipeError(f"SmoothQuant.gain must be at least 1, got {self.gain!r}")
        if not self.tolerance >= 0:
            raise RecipeError(f"SmoothQuant.tolerance must not be negative, got {self.tolerance!r}")
        if self.sweeps < 1:
            raise RecipeError(f"SmoothQuant.sweeps must be at least 1, got {self.sweeps!r}")
        for operator in self.operators:
            if operator not in SMOOTHABLE_OPERATORS:
                raise RecipeError(
                    f"SmoothQuant.operators must be among {SMOOTHABLE_OPERATORS}, got {operator!r}"
                    f"{nearest_spelling(operator, SMOOTHABLE_OPERATORS)}"
                )
