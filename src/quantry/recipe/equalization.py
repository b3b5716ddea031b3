"""Options of equalization: rewrites that keep the function and make weights and activations easier to quantize."""

from dataclasses import dataclass

from quantry.errors import RecipeError, nearest_spelling
from quantry.facts.operators import LINEAR
from quantry.recipe.checked import Checked

SMOOTHABLE_OPERATORS = LINEAR
"""Operators whose inputs can be scaled channel by channel."""


@dataclass(frozen=True)
class SmoothQuant(Checked):
    """SmoothQuant: divides the channels of an activation by factors and multiplies the weights that read it by them.

    Outliers in a few channels cost all other channels their resolution. Weights have resolution to spare, above all
    with one scale per channel. The factors are folded into the producer of the activation: a LayerNormalization, a
    linear layer or a constant operand. For a gate such as SiLU, ``x * sigmoid(x)``, they go into the layer before it,
    and a multiplication restores the input of the Sigmoid. The function of the model does not change.

    Attributes:
        alpha: How much of a channel's range moves into the weights, 0 to 1: the factor is
            ``max|x|**alpha / max|w|**(1 - alpha)`` for every layer (SmoothAlpha). None chooses the factors of each
            layer by the estimated rounding error, and only where they help.
        operators: Operator types whose inputs are scaled.
        insert: Insert a multiplication where the factors cannot be folded. It helps if the tensor before the
            multiplication stays float; a quantized one has already lost its small channels.
        gain: With ``alpha=None``, the factor by which the estimated error must fall to justify a multiplication. What
            needs no new operator is done if the error falls by at least a tenth.
        tolerance: With ``alpha=None``, no multiplication is inserted where the estimated error is below this fraction
            of the energy of the layer's output; 0.001 is 30 dB.
        sweeps: Passes over the model. With per-tensor weights, the factors before and after a layer depend on each
            other, and more sweeps bring them closer to the optimum.
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
            raise RecipeError(
                f"SmoothQuant.alpha must be in [0, 1], or None to choose it per layer, got {self.alpha!r}"
            )
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
class Rotation(Checked):
    """Rotates the residual streams of transformers, so that no channel is larger than the others.

    In transformers, a few channels of the sums that LayerNormalization reads are 100 times as large as the others, and
    no 8-bit scale fits both. Mean and variance do not change if the channels are multiplied with an orthogonal matrix
    that keeps the vector of ones. The layers that write the sums and those that read the normalized result absorb the
    matrix, so the function of the model does not change. Networks that add the result of a LayerNormalization to the
    next sum, such as BERT, get one matrix product for each.

    Attributes:
        seed: Which rotation; all of them spread the channels evenly.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed < 0:
            raise RecipeError(f"Rotation.seed must not be negative, got {self.seed!r}")


MOST_GROUPS = 4
"""Each group is a convolution of its own; more than this cost more time than they are worth."""


@dataclass(frozen=True)
class ChannelGroups(Checked):
    """Splits a convolution into several, grouping output channels by the magnitude of their weights.

    Each group has its own scales for weight and bias, for targets with one scale per tensor. Channels are reordered in
    all layers that write and read them, so that one Concat joins the groups. Depthwise convolutions read their groups
    from a Split. Does nothing for per-channel weights.

    Attributes:
        groups: Maximum number of groups, 2 to 4.
        gain: The factor by which the estimated rounding error must fall, and again for each further group.
        tolerance: A convolution is not split if its estimated rounding error is below this fraction of the energy of
            its output; 0.0001 is 40 dB.
    """

    groups: int = MOST_GROUPS
    gain: float = 1.5
    tolerance: float = 0.0001

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.groups <= MOST_GROUPS:
            raise RecipeError(f"ChannelGroups.groups must be 2 to {MOST_GROUPS}, got {self.groups!r}")
        if not self.gain >= 1:
            raise RecipeError(f"ChannelGroups.gain must be at least 1, got {self.gain!r}")
        if not self.tolerance >= 0:
            raise RecipeError(f"ChannelGroups.tolerance must not be negative, got {self.tolerance!r}")


@dataclass(frozen=True)
class CrossLayer(Checked):
    """Cross-layer equalization: gives the channels of consecutive layers similar ranges (Nagel et al. 2019).

    The names in brackets are those of AMD Quark and vai_q_onnx.

    Attributes:
        steps: Sweeps over the model, at least 1; -1 repeats until convergence (CLESteps).
        include_bias: Count the scaled-down bias in the range of its channel (CLEScaleAppendBias). Channels with tiny
            weights and a large bias would otherwise become outliers of the activation.
        use_threshold: Skip channels whose ranges are small in all layers involved (CLEScaleUseThreshold).
        weight_threshold: A channel is small if its ranges add up to less than this (CLEWeightThreshold).
        convergence: With ``steps=-1``, stop when the mean absolute change of the weights in one sweep is below this
            (CLETotalLayerDiffThreshold).
        clip6_to_relu: First replace Clip(0, 6) by Relu, which equalization cannot pass; this changes the function, so
            it is off by default (ReplaceClip6Relu).
    """

    # AMD Quark's defaults.
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
            if not getattr(self, name) >= 0:  # Not `< 0`, which NaN would pass.
                raise RecipeError(f"CrossLayer.{name} must not be negative, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class JointEqualization(Checked):
    """Joint equalization: one factor for each channel, all chosen together so that the estimated error is small.

    Errors of weights, biases and activations count alike, and channels are followed through sums, Concat, Split and
    shuffles. Where a Clip such as ReLU6 follows, channels that reach its bound share a factor. The function of the
    model does not change.

    Attributes:
        iterations: Maximum number of steps of the search.
        gain: Factors pass SiLU and similar gates by a multiplication. It is inserted where the estimated error of what
            has these factors falls by at least this factor.
    """

    iterations: int = 150
    gain: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1:
            raise RecipeError(f"JointEqualization.iterations must be at least 1, got {self.iterations!r}")
        if not self.gain >= 1:
            raise RecipeError(f"JointEqualization.gain must be at least 1, got {self.gain!r}")


@dataclass(frozen=True)
class FitPowers(Checked):
    """Multiplies whole tensors by factors between 0.7 and 1.4 so that power-of-two scales fit them better.

    The model computes the same: the weights before a tensor take its factor, those after it the inverse. The factors
    are right for ranges with the least squared error (`MinMSE`), which recommended recipes use.

    Attributes:
        candidates: Number of factors per tensor, at least 2.
        sweeps: Passes over all tensors.
    """

    candidates: int = 16
    sweeps: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("candidates", 2), ("sweeps", 1)):
            if getattr(self, name) < least:
                raise RecipeError(f"FitPowers.{name} must be at least {least}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class EqualizeOptions(Checked):
    """Which equalizations run; None skips one.

    Attributes:
        cross_layer: Cross-layer equalization.
        smooth: SmoothQuant; runs before cross-layer equalization and needs a separate float pass.
        joint: Joint equalization; runs after these two and needs a separate float pass.
        groups: Splitting of convolutions into groups of channels.
        powers: Factors for whole tensors that fit power-of-two scales; runs last and needs a separate float pass.
        rotate: Rotation of residual streams; runs before all others.
    """

    cross_layer: CrossLayer | None = None
    smooth: SmoothQuant | None = None
    joint: JointEqualization | None = None
    groups: ChannelGroups | None = None
    powers: FitPowers | None = None
    rotate: Rotation | None = None
