"""Options of mixed precision: the types that layers may change to, and the goal."""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.facts.operators import LINEAR
from quantry.recipe.checked import Checked
from quantry.recipe.layers import check_activation
from quantry.recipe.tensor_spec import Bias, TensorSpec

MIXABLE_OPERATORS = LINEAR


@dataclass(frozen=True)
class LayerTarget(Checked):
    """Types that a layer may change to; None keeps the whole model's.

    Attributes:
        activation: Type of its input.
        weight: Type of its weight.
        bias: Type of its bias; None takes the one that fits, as in `LayerTypes`.
    """

    activation: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation is None and self.weight is None:
            raise RecipeError("LayerTarget must set activation or weight, got neither")
        check_activation("LayerTarget.activation", self.activation)


@dataclass(frozen=True)
class WithinError(Checked):
    """The outputs stay close to the float model's.

    Attributes:
        limit: The worst accepted value of the metric.
        metric: Name of a built-in metric.
    """

    limit: float
    metric: str = "l2"


@dataclass(frozen=True)
class WithinDrop(Checked):
    """The user's score, a function given to `quantize`, falls by at most this much.

    Attributes:
        limit: The float model's score minus the quantized model's.
    """

    limit: float


@dataclass(frozen=True)
class LayerCount(Checked):
    """A fixed number of layers changes: those that leave the smallest error.

    Attributes:
        count: Number of layers.
    """

    count: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 0:
            raise RecipeError(f"LayerCount.count must not be negative, got {self.count}")


@dataclass(frozen=True)
class TensorShare(Checked):
    """At most a fraction of all quantized tensors gets the finer types; the error is minimized.

    Attributes:
        share: Fraction of all quantized activations, weights and biases, 0 to 1.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise RecipeError(f"TensorShare.share must be between 0 and 1, got {self.share}")


@dataclass(frozen=True)
class SizeBudget(Checked):
    """Weights and biases take at most this many bytes; the error is minimized.

    Attributes:
        size: Bytes of all quantized constants.
    """

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise RecipeError(f"SizeBudget.size must be at least 1, got {self.size}")


@dataclass(frozen=True)
class SizeShare(Checked):
    """Weights and biases take at most a fraction of the bytes that the finest types add to the coarsest ones.

    With 4 and 8 bits, a quarter is five bits per weight on average.

    Attributes:
        share: The fraction: 0 allows the coarsest types only, 1 the finest everywhere.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise RecipeError(f"SizeShare.share must be between 0 and 1, got {self.share}")


@dataclass(frozen=True)
class BitOperationsBudget(Checked):
    """Bit operations are at most a fraction of those with the finest types everywhere.

    A multiplication costs the bits of its activation times the bits of its weight.

    Attributes:
        share: The fraction, 0 to 1.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise RecipeError(f"BitOperationsBudget.share must be between 0 and 1, got {self.share}")


@dataclass(frozen=True)
class LatencyBudget(Checked):
    """Layers take at most this much time on this machine; each is measured separately in each type.

    Attributes:
        milliseconds: Total time of the layers that may change, for one sample.
        runs: Timed runs of each layer; the fastest counts.
    """

    milliseconds: float
    runs: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.milliseconds > 0:
            raise RecipeError(f"LatencyBudget.milliseconds must be above 0, got {self.milliseconds}")
        if self.runs < 1:
            raise RecipeError(f"LatencyBudget.runs must be at least 1, got {self.runs}")


Goal = (
    WithinError | WithinDrop | LayerCount | TensorShare | SizeBudget | SizeShare | BitOperationsBudget | LatencyBudget
)


@dataclass(frozen=True)
class Greedy:
    """Takes the change with the best ratio of gain to cost first."""


@dataclass(frozen=True)
class Exact:
    """Finds the best combination: an integer linear program if scipy is installed, else dynamic programming."""


Allocation = Greedy | Exact


@dataclass(frozen=True)
class MixedPrecision(Checked):
    """Changes the types of some layers, by their sensitivity.

    Targets coarser than the plan demote layers as far as the goal allows; finer ones promote them as far as it
    requires. Layers that read the same tensor change together.

    Attributes:
        targets: Types that layers may change to.
        goal: What to reach.
        operators: Operator types of the layers that may change.
        include: Only these layers may change, named as in `Selection`; empty means all.
        exclude: These layers may not change.
        per_tensor: Decide for each activation, weight and bias separately instead of for layers.
        unshared_inputs: Skip layers whose input other nodes read too.
        output: Index of the model output that is compared; None compares all.
        samples: Samples that sensitivity is measured on.
        allocation: How a budget is distributed.
    """

    targets: tuple[LayerTarget, ...]
    goal: Goal
    operators: tuple[str, ...] = MIXABLE_OPERATORS
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_tensor: bool = False
    unshared_inputs: bool = False
    output: int | None = None
    samples: int = 8
    allocation: Allocation = Exact()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise RecipeError("MixedPrecision.targets must name at least one LayerTarget, got none")
        if self.samples < 1:
            raise RecipeError(f"MixedPrecision.samples must be at least 1, got {self.samples}")
        if self.per_tensor and isinstance(self.goal, BitOperationsBudget | LatencyBudget):
            raise RecipeError(
                f"MixedPrecision.per_tensor must be False with {type(self.goal).__name__}, because the cost is known "
                "for layers and not for single tensors; got True"
            )
        if isinstance(self.goal, WithinError | WithinDrop | LayerCount) and len(self.targets) > 1:
            raise RecipeError(
                f"MixedPrecision.targets must be one LayerTarget with {type(self.goal).__name__}, got "
                f"{len(self.targets)}; use TensorShare or a budget for several"
            )


@dataclass(frozen=True)
class MixOptions(Checked):
    """Whether types are searched for.

    Attributes:
        mixed: Mixed precision; None keeps the types of the plan.
    """

    mixed: MixedPrecision | None = None
