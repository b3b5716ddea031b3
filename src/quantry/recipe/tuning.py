"""Options of the tune stage: an ordered list of steps, each of a type that is its algorithm.

In brackets the name of the option in AMD Quark's ``FastFinetune``.
"""

import enum
import re
from dataclasses import dataclass

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe.checked import Checked

TUNABLE_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "InstanceNormalization", "LayerNormalization")
"""Operators whose constants can be tuned layer by layer."""

DEFAULT_SEED = 1705472343

_DEVICE = re.compile(r"cpu|(cuda|hip):\d+(,\d+)*")


@dataclass(frozen=True)
class BiasCorrection(Checked):
    """Moves biases so that every channel of a layer has the mean it has in the float model.

    Attributes:
        sequential: Correct layer by layer, each on what the corrected layers before it give; False corrects all layers
            from one pass.
        samples: Use at most this many samples; None uses all.
    """

    sequential: bool = True
    samples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "samples")


@dataclass(frozen=True)
class LayerTuning(Checked):
    """What all algorithms have in common that go through the model layer by layer.

    Attributes:
        samples: Use at most this many samples; None uses all (DataSize).
        inference_device: Where activations are computed: ``cpu``, ``cuda:N`` or ``hip:N`` (InferDevice).
        seed: Of everything that is drawn at random (FixedSeed).
        quantized_inputs: Probability that a layer is fed what the quantized layers before it give; otherwise it is fed
            what the float layers give (DropRatio).
        operators: Operator types whose layers are tuned (TargetOpType).
        selective: Take a layer's result only where the model's outputs do not come out worse for it (SelectiveUpdate).
        output_index: Which output of the model that comparison looks at; None takes all (OutputIndex).
        memory: 0 keeps activations in memory, 1 uses the disk above 128 MB in all, 2 keeps all on disk (MemOptLevel).
        cache_directory: Where activations on disk lie; None uses the system's temporary folder (CacheDir).
    """

    samples: int | None = None
    inference_device: str = "cpu"
    seed: int = DEFAULT_SEED
    quantized_inputs: float = 1.0
    operators: tuple[str, ...] = TUNABLE_OPERATORS
    selective: bool = False
    output_index: int | None = None
    memory: int = 1
    cache_directory: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "samples")
        _check_device(self, "inference_device")
        _check_fraction(self, "quantized_inputs")
        if self.memory not in (0, 1, 2):
            raise RecipeError(f"{_where(self)}.memory must be 0, 1 or 2, got {self.memory!r}")
        for operator in self.operators:
            if operator not in TUNABLE_OPERATORS:
                hint = nearest_spelling(operator, TUNABLE_OPERATORS)
                raise RecipeError(f"{_where(self)}.operators must be among {TUNABLE_OPERATORS}, got {operator!r}{hint}")


@dataclass(frozen=True)
class Gptq(LayerTuning):
    """Rounds weights one column after the other; later columns make up for the error of earlier ones.

    Needs one pass over the samples and no training, and no torch.

    Attributes:
        damping: Added to the diagonal of the Gram matrix, as a part of its mean (PercDamp).
        block_size: Columns that are rounded before the rest is updated; the result does not depend on it (BlockSize).
        order_by_activation: Round the columns with the strongest inputs first (ActOrder).
        compensate: Make up for errors of the inputs too, as far as that holds for samples it was not learned from;
            False aims at what the float layer gives on the quantized inputs.
        update_bias: Let the bias take up the mean error.
        descent_sweeps: Sweeps of coordinate descent over the integers after rounding; 0 does none.
    """

    damping: float = 0.01
    block_size: int = 128
    order_by_activation: bool = True
    compensate: bool = True
    update_bias: bool = True
    descent_sweeps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "damping", "block_size")
        if self.descent_sweeps < 0:
            raise RecipeError(f"Gptq.descent_sweeps must not be negative, got {self.descent_sweeps!r}")


@dataclass(frozen=True)
class LayerTraining(LayerTuning):
    """What layer-by-layer algorithms have in common that train.

    Attributes:
        device: Where layers are trained: ``cpu``, ``cuda:N`` or ``hip:N`` (OptimDevice).
        batch_size: Samples in a mini-batch, where mini-batches are drawn (BatchSize).
        batches: Mini-batches in an iteration, where mini-batches are drawn (NumBatches).
        iterations: Training steps for each layer (NumIterations).
        learning_rate: Step size of Adam (LearningRate).
        learning_rate_adjust: Empty, or a threshold and the learning rate for layers whose error before training is
            above it (LRAdjust).
        early_stop: Stop a layer when its output error has not fallen for a tenth of the iterations; with AdaRound, when
            no weight has gone to its other side for as long (EarlyStop).
        output_pair: Judge the layer's output behind its activation function and its Q/DQ pair (OutputQDQ).
        whole_data: Where the layer is linear up to its output, take the exact loss over all samples from their Gram
            matrix, which replaces mini-batches; False draws mini-batches everywhere.
        log_period: Log the loss every so many iterations; None logs ten times for each layer (LogPeriod).
    """

    device: str = "cpu"
    batch_size: int = 1
    batches: int = 1
    iterations: int = 1000
    learning_rate: float = 0.1
    learning_rate_adjust: tuple[float, ...] = ()
    early_stop: bool = False
    output_pair: bool = False
    whole_data: bool = True
    log_period: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_device(self, "device")
        _check_positive(self, "batch_size", "batches", "iterations", "learning_rate", "log_period")
        if len(self.learning_rate_adjust) not in (0, 2):
            raise RecipeError(
                f"{_where(self)}.learning_rate_adjust must be empty or a threshold and a learning rate, got "
                f"{self.learning_rate_adjust!r}"
            )


@dataclass(frozen=True)
class AdaRound(LayerTraining):
    """Learns for every weight whether to round it up or down.

    Attributes:
        regularization: Weight of the term that drives every weight to one of the two (RegParam).
        beta_range: Exponent of that term at the beginning and at the end (BetaRange).
        warm_start: Part of the iterations before the term sets in (WarmStart).
    """

    regularization: float = 0.01
    beta_range: tuple[float, ...] = (20.0, 2.0)
    warm_start: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_fraction(self, "warm_start")
        if len(self.beta_range) != 2:
            raise RecipeError(f"AdaRound.beta_range must be a first and a last exponent, got {self.beta_range!r}")


@dataclass(frozen=True)
class AdaQuant(LayerTraining):
    """Trains the weights themselves through their rounding.

    Attributes:
        update_bias: Train the bias too (UpdateBias).
    """

    learning_rate: float = 1e-5
    update_bias: bool = True


@dataclass(frozen=True)
class GraphTraining(Checked):
    """What algorithms have in common that train many layers at once.

    Attributes:
        samples: Use at most this many samples; None uses all.
        device: Where to train: ``cpu``, ``cuda:N`` or ``hip:N``.
        batch_size: Samples in a step.
        iterations: Training steps; for block by block training, of each block.
        learning_rate: Step size for weights and biases, as a part of the typical weight of each tensor.
        scale_learning_rate: Step size for log2 of the scales, where these are trained.
        seed: Of everything that is drawn at random.
    """

    samples: int | None = None
    device: str = "cpu"
    batch_size: int = 8
    iterations: int = 200
    learning_rate: float = 5e-4
    scale_learning_rate: float = 2e-3
    seed: int = DEFAULT_SEED

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_device(self, "device")
        _check_positive(self, "samples", "batch_size", "iterations", "learning_rate", "scale_learning_rate")


@dataclass(frozen=True)
class Brecq(GraphTraining):
    """Block reconstruction: trains the layers of a block together against what the block gives in the float model.

    Attributes:
        layers: Linear layers in a block, at most.
        train_bias: Train biases too.
    """

    layers: int = 4
    train_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "layers")


@dataclass(frozen=True)
class Tqt(GraphTraining):
    """Trained quantization thresholds: like `Brecq`, with the log2 of every scale trained beside the weights.

    Power-of-two scales stay powers of two.

    Attributes:
        layers: Linear layers in a block, at most.
        train_bias: Train biases too.
    """

    layers: int = 4
    train_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "layers")


class DistillLoss(enum.Enum):
    """How outputs are compared with those of the float model; the value is its spelling in recipes."""

    RELATIVE_L2 = "relative-l2"
    L1 = "l1"
    KL = "kl"


@dataclass(frozen=True)
class Distill(GraphTraining):
    """Trains the whole quantized graph end to end against the outputs of the float model; needs no labels.

    Attributes:
        train_weights: Train the weights.
        train_bias: Train the biases.
        train_scales: Train the log2 of scales of activations and weights too.
        loss: How outputs are compared.
        held_out: Part of the samples that is not trained on and decides which state is kept; 0 decides on all.
        evaluations: How often the state is judged during training.
    """

    train_weights: bool = True
    train_bias: bool = True
    train_scales: bool = False
    loss: DistillLoss = DistillLoss.RELATIVE_L2
    held_out: float = 0.0
    evaluations: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_fraction(self, "held_out")
        _check_positive(self, "evaluations")
        if not (self.train_weights or self.train_bias or self.train_scales):
            raise RecipeError("Distill must train weights, biases or scales, got none of the three")


TuneStep = BiasCorrection | Gptq | AdaRound | AdaQuant | Brecq | Tqt | Distill


@dataclass(frozen=True)
class TuneOptions(Checked):
    """What is done to weights, biases and scales after ranges have been chosen.

    Attributes:
        steps: Algorithms in order; each starts from what the one before it left.
    """

    steps: tuple[TuneStep, ...] = ()


def _where(options: object) -> str:
    return type(options).__name__


def _check_positive(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise RecipeError(f"{_where(options)}.{name} must be above 0, got {value!r}")


def _check_fraction(options: object, name: str) -> None:
    value = getattr(options, name)
    if not 0 <= value <= 1:
        raise RecipeError(f"{_where(options)}.{name} must be between 0 and 1, got {value!r}")


def _check_device(options: object, name: str) -> None:
    value = getattr(options, name)
    if _DEVICE.fullmatch(value) is None:
        raise RecipeError(f"{_where(options)}.{name} must be 'cpu', 'cuda:N' or 'hip:N', got {value!r}")
