"""Options of equalization that looks at activations, and of rewrites that give weights more scales."""

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


@dataclass(frozen=True)
class BiasAbsorption(Checked):
    """Moves what a channel always has on top of zero from one layer's bias into the next one's (Nagel et al. 2019).

    Where the input ``x`` of a Relu was never below ``c``, ``Relu(x) = Relu(x - c) + c``. The layer before makes
    ``x - c``, the layers behind add ``W @ c`` to their biases, and the tensor between has a smaller range. Smallest
    values are those seen on the calibration data: there the function stays the same, and on other data as long as no
    ``x`` falls below ``c``.

    Attributes:
        margin: What is held back for data that were not seen, as a part of a channel's range.
        gain: By what factor the largest value of the tensor must fall to be worth it.
    """

    margin: float = 0.1
    gain: float = 1.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.margin >= 0:
            raise RecipeError(f"BiasAbsorption.margin must not be negative, got {self.margin!r}")
        if not self.gain >= 1:
            raise RecipeError(f"BiasAbsorption.gain must be at least 1, got {self.gain!r}")


MOST_GROUPS = 4
"""More convolutions than this in the place of one are no longer few."""


@dataclass(frozen=True)
class ChannelGroups(Checked):
    """Splits a convolution's output channels into few groups by the size of their weights, each a Conv of its own.

    Each group has its own scales of weight and bias, for targets with one scale for each tensor. Channels are put in
    order in all layers that make and read them, so that the groups are joined by one Concat. Depthwise convolutions
    read their groups from a Split. Nothing is done where weights have a scale for each channel anyway.

    Attributes:
        groups: How many groups at most, 2 to 4.
        gain: By what factor the estimated rounding error must fall, and again for each further group.
        tolerance: No convolution is split whose estimated rounding error is below this part of the energy of its
            output; 0.0001 is 40 dB.
    """

    groups: int = MOST_GROUPS
    gain: float = 1.5
    tolerance: float = 0.0001

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.groups <= MOST_GROUPS:
            raise RecipeError(f"ChannelGroups.groups must be 2 to {MOST_GROUPS}, got {self.groups!r}")
        _check_pays("ChannelGroups", self.gain, self.tolerance)


@dataclass(frozen=True)
class OutlierSplitting(Checked):
    """Makes input channels with outlying weights twice and halves the weights that read them (Zhao et al. 2019).

    The channels are made twice by the layers before, so that no operator is added. Nothing is done where weights have a
    scale for each channel anyway.

    Attributes:
        share: How many channels of a tensor may be added, as a part of their number; at least one may.
        gain: By what factor the estimated rounding error of the reading layer must fall.
        tolerance: No layer is changed whose estimated rounding error is below this part of the energy of its output;
            0.0001 is 40 dB.
    """

    share: float = 0.05
    gain: float = 1.5
    tolerance: float = 0.0001

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise RecipeError(f"OutlierSplitting.share must be above 0 and at most 1, got {self.share!r}")
        _check_pays("OutlierSplitting", self.gain, self.tolerance)


def _check_pays(name: str, gain: float, tolerance: float) -> None:
    if not gain >= 1:
        raise RecipeError(f"{name}.gain must be at least 1, got {gain!r}")
    if not tolerance >= 0:
        raise RecipeError(f"{name}.tolerance must not be negative, got {tolerance!r}")


@dataclass(frozen=True)
class CrossLayer(Checked):
    """Cross-layer equalization: gives the channels of consecutive layers like ranges without changing the function.

    In brackets the name of the option in AMD Quark and vai_q_onnx. High-bias absorption is an option of its own,
    `BiasAbsorption`.

    Attributes:
        steps: Sweeps over the model, at least 1; -1 repeats until the weights rest (CLESteps).
        include_bias: Let a bias, scaled down, count in the range of its channel (CLEScaleAppendBias). It holds channels
            back that have hardly any weight but a bias, which would otherwise become outliers of the activation.
        use_threshold: Leave channels alone whose ranges in all layers concerned are small (CLEScaleUseThreshold).
        weight_threshold: What is small: the ranges of a channel add up to less than this (CLEWeightThreshold).
        convergence: With ``steps=-1``, the mean absolute change of the weights in one sweep that counts as rest
            (CLETotalLayerDiffThreshold).
        clip6_to_relu: First replace Clip(0, 6) by Relu, which equalization cannot pass otherwise; changes the function,
            so only on request (ReplaceClip6Relu).
    """

    steps: int = 1
    include_bias: bool = True
    use_threshold: bool = True
    weight_threshold: float = 0.5
    convergence: float = 2e-7
    clip6_to_relu: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 and self.steps != -1:
            raise RecipeError(f"CrossLayer.steps must be at least 1, or -1 for convergence, got {self.steps!r}")
        for name in ("weight_threshold", "convergence"):
            if not getattr(self, name) >= 0:
                raise RecipeError(f"CrossLayer.{name} must not be negative, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class EqualizeOptions(Checked):
    """Changes to the float weights that keep the function and make them easier to quantize.

    Attributes:
        cross_layer: Cross-layer equalization; None does none.
        smooth: SmoothQuant, which comes first and needs a float pass of its own; None does none.
        absorb: High-bias absorption, which comes behind these and needs a float pass of its own; None does none.
        split: Outlier-channel splitting; None does none.
        groups: Convolutions split into groups of channels, which comes last; None splits none.
    """

    cross_layer: CrossLayer | None = None
    smooth: SmoothQuant | None = None
    absorb: BiasAbsorption | None = None
    split: OutlierSplitting | None = None
    groups: ChannelGroups | None = None
