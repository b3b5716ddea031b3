"""Mixed precision: what layers may become instead, and what to reach with it."""

from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked
from quantry.recipe.layers import check_activation
from quantry.recipe.tensor_spec import Bias, TensorSpec

MIXABLE_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class LayerTarget(Checked):
    """What a layer may become instead of what the whole model is; None leaves a part as it is.

    Attributes:
        activation: What it reads.
        weight: Its weight.
        bias: Its bias; None takes the kind that goes with the types, as in `LayerTypes`.
    """

    activation: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation is None and self.weight is None:
            raise RecipeError("LayerTarget must name another type for activation or weight, got neither")
        check_activation("LayerTarget.activation", self.activation)


@dataclass(frozen=True)
class WithinError(Checked):
    """The outputs stay near those of the float model.

    Attributes:
        limit: The worst that is accepted, in the unit of the metric.
        metric: Name of a built-in metric.
    """

    limit: float
    metric: str = "l2"


@dataclass(frozen=True)
class WithinDrop(Checked):
    """The score of the user's own function falls by no more than this; the function is given to `quantize`.

    Attributes:
        limit: The score of the float model less that of the quantized one.
    """

    limit: float


@dataclass(frozen=True)
class LayerCount(Checked):
    """A fixed number of layers changes: those with which the outputs fare best.

    Attributes:
        count: Their number.
    """

    count: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 0:
            raise RecipeError(f"LayerCount.count must not be negative, got {self.count}")


@dataclass(frozen=True)
class TensorShare(Checked):
    """At most a share of all quantized tensors has the finer types; the outputs are to be as near as they can.

    Attributes:
        share: Between 0 and 1, of all quantized activations, weights and biases.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise RecipeError(f"TensorShare.share must lie between 0 and 1, got {self.share}")


@dataclass(frozen=True)
class SizeBudget(Checked):
    """Weights and biases take at most so many bytes; the outputs are to be as near as they can.

    Attributes:
        size: Bytes of all quantized constants.
    """

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise RecipeError(f"SizeBudget.size must be at least 1, got {self.size}")


@dataclass(frozen=True)
class BitOperationsBudget(Checked):
    """Multiplications cost at most a share of what they cost with the finest types everywhere.

    A multiplication costs the bits of its activation times the bits of its weight.

    Attributes:
        share: Between 0 and 1.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise RecipeError(f"BitOperationsBudget.share must lie between 0 and 1, got {self.share}")


@dataclass(frozen=True)
class LatencyBudget(Checked):
    """Layers take at most so much time on this machine, each measured by itself in each type.

    Attributes:
        milliseconds: Time of all layers that may change, for one sample.
        runs: How often each is timed; the fastest counts.
    """

    milliseconds: float
    runs: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.milliseconds > 0:
            raise RecipeError(f"LatencyBudget.milliseconds must be above 0, got {self.milliseconds}")
        if self.runs < 1:
            raise RecipeError(f"LatencyBudget.runs must be at least 1, got {self.runs}")


Goal = WithinError | WithinDrop | LayerCount | TensorShare | SizeBudget | BitOperationsBudget | LatencyBudget


@dataclass(frozen=True)
class Greedy:
    """Changes what gains most for what it costs first."""


@dataclass(frozen=True)
class Exact:
    """Finds the best of all combinations: a linear program with whole numbers where scipy is there, else a table."""


Allocation = Greedy | Exact


@dataclass(frozen=True)
class MixedPrecision(Checked):
    """Gives some layers other types than the plan does, by how much each matters to the outputs.

    With targets that are coarser than the plan, layers are demoted as far as the goal allows; with finer ones, promoted
    as far as it demands. Layers that read the same tensor change together.

    Attributes:
        targets: What layers may become.
        goal: What to reach.
        operators: Operator types of the layers that may change.
        include: Only these layers, named as in `Selection`; empty means all.
        exclude: Not these layers.
        apart: Decide on each activation, weight and bias by itself instead of on layers.
        unshared_inputs: Leave layers alone whose input other nodes read too.
        output: Index of the output that counts; None counts all.
        samples: How many samples say how much each tensor matters.
        allocation: How budgets are spent.
    """

    targets: tuple[LayerTarget, ...]
    goal: Goal
    operators: tuple[str, ...] = MIXABLE_OPERATORS
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    apart: bool = False
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
        if self.apart and isinstance(self.goal, BitOperationsBudget | LatencyBudget):
            raise RecipeError(
                f"MixedPrecision.apart must be False with {type(self.goal).__name__}, which knows what layers cost and "
                "not what tensors cost; got True"
            )
        if isinstance(self.goal, WithinError | WithinDrop | LayerCount) and len(self.targets) > 1:
            raise RecipeError(
                f"MixedPrecision.targets must be one LayerTarget with {type(self.goal).__name__}, got "
                f"{len(self.targets)}; several go with TensorShare and budgets"
            )


@dataclass(frozen=True)
class MixOptions(Checked):
    """Types that are found instead of given.

    Attributes:
        mixed: Mixed precision; None keeps the plan.
    """

    mixed: MixedPrecision | None = None
