"""Options of the tune stage: an ordered list of steps whose type is the algorithm.

The names in brackets are the options of AMD Quark's ``FastFinetune``.
"""

import enum
import re
from dataclasses import dataclass

from quantry.errors import RecipeError, nearest_spelling
from quantry.facts.operators import operators_where
from quantry.recipe.checked import Checked

TUNABLE_OPERATORS = operators_where(lambda row: row.tunable)
"""Operators whose constants can be tuned layer by layer."""

# AMD Quark's FixedSeed.
DEFAULT_SEED = 1705472343

_DEVICE = re.compile(r"cpu|(cuda|hip):\d+(,\d+)*")


@dataclass(frozen=True)
class BiasCorrection(Checked):
    """Shifts biases so that every output channel has the same mean as in the float model.

    Attributes:
        sequential: Correct layer by layer, each with inputs from the corrected layers before it; False corrects all
            layers from one pass.
        samples: Maximum number of samples; None uses all.
    """

    sequential: bool = True
    samples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "samples")


@dataclass(frozen=True)
class LayerTuning(Checked):
    """Options of all algorithms that work layer by layer.

    Attributes:
        samples: Maximum number of samples; None uses all (DataSize).
        inference_device: Where activations are computed: ``cpu``, ``cuda:N`` or ``hip:N`` (InferDevice).
        seed: Random seed (FixedSeed).
        quantized_inputs: Probability that a layer's input comes from the quantized layers before it instead of the
            float layers (DropRatio).
        operators: Operator types whose layers are tuned (TargetOpType).
        selective: Keep a layer's result only if it does not make the model's outputs worse (SelectiveUpdate).
        output_index: The model output that is compared for that; None compares all (OutputIndex).
        memory: 0 keeps activations in memory, 1 moves them to disk above 128 MB, 2 keeps all on disk (MemOptLevel).
        cache_directory: Directory for activations on disk; None uses the system's temporary directory (CacheDir).
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
    """GPTQ (Frantar et al. 2022): rounds weights column by column; later columns compensate the error of earlier ones.

    Needs one pass over the samples, no training and no torch.

    Attributes:
        damping: Added to the diagonal of the Gram matrix, as a fraction of its mean (PercDamp).
        block_size: Columns that are rounded before the rest is updated; it does not change the result (BlockSize).
        order_by_activation: Round the columns with the largest inputs first (ActOrder).
        compensate: Also compensate the error of the quantized inputs, as far as that generalizes to held-out samples;
            False targets the float layer's output on the quantized inputs.
        update_bias: Let the bias absorb the mean error.
        descent_sweeps: Sweeps of coordinate descent over the integers after rounding.
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
    """Options of algorithms that train layer by layer.

    Attributes:
        device: Where layers are trained: ``cpu``, ``cuda:N`` or ``hip:N`` (OptimDevice).
        batch_size: Samples in a mini-batch, if mini-batches are used (BatchSize).
        batches: Mini-batches in an iteration, if mini-batches are used (NumBatches).
        iterations: Training steps per layer (NumIterations).
        learning_rate: Learning rate of Adam (LearningRate).
        learning_rate_adjust: Empty, or a threshold and the learning rate for layers whose initial error is above it
            (LRAdjust).
        early_stop: Stop a layer when its output error has not fallen for 10 % of the iterations; with AdaRound, when
            no weight has changed its rounding direction for that long (EarlyStop).
        output_pair: Measure the error after the layer's activation function and Q/DQ pair (OutputQDQ).
        whole_data: If the layer is linear up to its output, compute the exact loss over all samples from their Gram
            matrix instead of mini-batches; False always uses mini-batches.
        log_period: Log the loss every N iterations; None logs ten times per layer (LogPeriod).
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
    """AdaRound (Nagel et al. 2020): learns for every weight whether to round it up or down.

    Attributes:
        regularization: Weight of the term that pushes every weight to one of the two (RegParam).
        beta_range: First and last exponent of that term (BetaRange).
        warm_start: Fraction of the iterations before the term is applied (WarmStart).
    """

    regularization: float = 0.01
    beta_range: tuple[float, ...] = (20.0, 2.0)
    warm_start: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_fraction(self, "warm_start")
        if len(self.beta_range) != 2:
            raise RecipeError(f"AdaRound.beta_range must be the first and the last exponent, got {self.beta_range!r}")


@dataclass(frozen=True)
class AdaQuant(LayerTraining):
    """AdaQuant (Hubara et al. 2020): trains the weights through their rounding with the straight-through estimator.

    Attributes:
        update_bias: Train the bias too (UpdateBias).
    """

    # The default of `LayerTraining`, 0.1, is for rounding variables between 0 and 1; weights are much smaller.
    learning_rate: float = 1e-5
    update_bias: bool = True


@dataclass(frozen=True)
class GraphTraining(Checked):
    """Options of algorithms that train many layers at once.

    Attributes:
        samples: Maximum number of samples; None uses all.
        device: Where to train: ``cpu``, ``cuda:N`` or ``hip:N``.
        batch_size: Samples in a step.
        iterations: Training steps; per block if blocks are trained.
        learning_rate: Learning rate of weights and biases, relative to the typical weight of each tensor.
        scale_learning_rate: Learning rate of the log2 of scales, if these are trained.
        seed: Random seed.
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
    """BRECQ (Li et al. 2021): trains the layers of a block together to reproduce the float block's output.

    Attributes:
        layers: Maximum number of linear layers in a block.
        train_bias: Train biases too.
    """

    layers: int = 4
    train_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "layers")


@dataclass(frozen=True)
class Tqt(GraphTraining):
    """TQT (Jain et al. 2019): like `Brecq`, and also trains the log2 of every scale.

    Power-of-two scales stay powers of two.

    Attributes:
        layers: Maximum number of linear layers in a block.
        train_bias: Train biases too.
    """

    layers: int = 4
    train_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "layers")


class DistillLoss(enum.Enum):
    """Loss between the outputs of the quantized and the float model; the value is its spelling in recipes."""

    RELATIVE_L2 = "relative-l2"
    L1 = "l1"
    KL = "kl"


@dataclass(frozen=True)
class Distill(GraphTraining):
    """Distillation: trains the whole quantized graph to reproduce the float model's outputs; needs no labels.

    Attributes:
        train_weights: Train the weights.
        train_bias: Train the biases.
        train_scales: Train the log2 of the scales of activations and weights.
        loss: Loss between the outputs.
        held_out: Fraction of the samples held out to choose the best checkpoint; 0 uses all samples for it.
        evaluations: Number of evaluations during training.
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
    """Finetuning of weights, biases and scales after calibration.

    Attributes:
        steps: Algorithms in order; each starts from the result of the previous one.
    """

    steps: tuple[TuneStep, ...] = ()


def _where(options: object) -> str:
    return type(options).__name__


def _check_positive(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not value > 0:  # Not `<= 0`, which NaN would pass.
            raise RecipeError(f"{_where(options)}.{name} must be above 0, got {value!r}")


def _check_fraction(options: object, name: str) -> None:
    value = getattr(options, name)
    if not 0 <= value <= 1:
        raise RecipeError(f"{_where(options)}.{name} must be between 0 and 1, got {value!r}")


def _check_device(options: object, name: str) -> None:
    value = getattr(options, name)
    if _DEVICE.fullmatch(value) is None:
        raise RecipeError(f"{_where(options)}.{name} must be 'cpu', 'cuda:N' or 'hip:N', got {value!r}")
