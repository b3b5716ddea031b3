"""Options of equalization, GPTQ, bias correction, AdaRound and AdaQuant."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from quantry.errors import OptionError, require_choice
from quantry.onnx.options import mixed_precision
from quantry.onnx.options.option_row import (
    Apply,
    Kind,
    OptionRow,
    nested,
    no_effect,
    refuses,
    same_result,
    sets,
    sets_field,
)
from quantry.onnx.options.recipe_draft import RecipeDraft, with_field
from quantry.recipe import (
    AdaQuant,
    AdaRound,
    BiasCorrection,
    DataType,
    Gptq,
    MinMax,
    MinMSE,
    PerChannel,
    PerGroup,
    PerTensor,
)

_WIDTHS = {4: DataType.INT4, 8: DataType.INT8, 16: DataType.INT16}


def _use(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value:
        return draft
    # As in AMD Quark, only weights are quantized then, and columns keep their order.
    plan = replace(draft.plan, weights_only=True)
    return replace(draft, gptq=Gptq(order_by_activation=False), plan=plan)


def _bits(draft: RecipeDraft, value: int) -> RecipeDraft:
    if value not in _WIDTHS:
        raise OptionError(
            f"extra_options['GPTQParams']['Bits'] must be one of {', '.join(map(str, _WIDTHS))}, got {value}"
        )
    return with_field(draft, "plan.weight.dtype", _WIDTHS[value])


def _group(draft: RecipeDraft, value: int) -> RecipeDraft:
    if value == -1:
        return draft
    return with_field(draft, "plan.weight.granularity", PerGroup(value))


def _granularity(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return with_field(draft, "plan.weight.granularity", PerChannel() if value else PerTensor())


def _least_squares(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return with_field(draft, "scale.weight", MinMSE() if value else MinMax())


def _row(key: str, kind: Kind, default: str, meaning: str, becomes: str, apply: Apply) -> OptionRow:
    return OptionRow(key, kind, default, meaning, becomes, apply)


def _tunes(name: str) -> dict[str, Any]:
    return {"becomes": f"tune.steps: Gptq.{name}", "apply": sets(f"gptq.{name}")}


GPTQ_ROWS = (
    _row("Bits", Kind.INT, "the weight's", "Bits of weights: 4, 8 or 16.", "plan.weight.dtype", _bits),
    _row(
        "PerChannel",
        Kind.BOOL,
        "False",
        "One scale per channel of a weight.",
        "plan.weight.granularity = PerChannel()",
        _granularity,
    ),
    _row(
        "GroupSize",
        Kind.INT,
        "-1",
        "Values that share a scale; -1 for the whole tensor or channel.",
        "plan.weight.granularity = PerGroup(size)",
        _group,
    ),
    _row("MSE", Kind.BOOL, "False", "Choose ranges by the mean squared error.", "scale.weight", _least_squares),
    sets_field(
        "WeightSymmetric", Kind.BOOL, "True", "Fix zero points at the centre of the type.", "plan.weight.symmetric"
    ),
    _row("BlockSize", Kind.INT, "128", "Columns that are rounded before the rest is updated.", **_tunes("block_size")),
    _row("PercDamp", Kind.FLOAT, "0.01", "Damping, as a fraction of the mean of the diagonal.", **_tunes("damping")),
    _row(
        "ActOrder",
        Kind.BOOL,
        "False",
        "Round the columns with the largest inputs first.",
        **_tunes("order_by_activation"),
    ),
)
"""Every key of ``GPTQParams``."""

_GPTQ = (
    OptionRow(
        "UseGPTQ",
        Kind.BOOL,
        "False",
        "Round weights with GPTQ; activations stay float.",
        "tune.steps = (Gptq(...),), plan.weights_only",
        _use,
    ),
    OptionRow(
        "GPTQParams",
        Kind.DICT,
        "{}",
        "Settings of GPTQ; see the table below.",
        "tune.steps, plan.weight",
        nested("GPTQParams", GPTQ_ROWS, "UseGPTQ", lambda draft: draft.gptq is not None),
    ),
)


_ALGORITHMS: dict[str, AdaRound | AdaQuant] = {"adaround": AdaRound(), "adaquant": AdaQuant()}
_FULL_NAMES = {"cpu:0": "cpu", "cuda": "cuda:0", "hip": "hip:0"}
_LOADER = "activations are in memory or in one file and are read directly; there is no data loader"


def _algorithm(draft: RecipeDraft, value: str) -> RecipeDraft:
    require_choice("extra_options['FastFinetune']['OptimAlgorithm']", value.lower(), _ALGORITHMS)
    step = _ALGORITHMS[value.lower()]
    return replace(draft, finetune=step)


def _sets(key: str, name: str) -> Apply:
    def apply(draft: RecipeDraft, value: Any) -> RecipeDraft:
        assert draft.finetune is not None
        # AdaRound and AdaQuant share one dict of settings, but not all fields.
        if name not in {field.name for field in fields(draft.finetune)}:
            return draft.with_note(f"FastFinetune: {key} has no effect with {type(draft.finetune).__name__}")
        setting = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        return with_field(draft, f"finetune.{name}", setting)

    return apply


def _device(name: str) -> Apply:
    def apply(draft: RecipeDraft, value: str) -> RecipeDraft:
        return with_field(draft, f"finetune.{name}", _FULL_NAMES.get(value.lower(), value.lower()))

    return apply


def _finetuning_row(key: str, kind: Kind, default: str, meaning: str, name: str) -> OptionRow:
    return OptionRow(key, kind, default, meaning, f"tune.steps: {name}", _sets(key, name))


FINETUNE_ROWS = (
    OptionRow(
        "OptimAlgorithm",
        Kind.TEXT,
        "'adaround'",
        "'adaround' learns the rounding of weights, 'adaquant' trains the weights.",
        "tune.steps = (AdaRound(...),) or (AdaQuant(...),)",
        _algorithm,
    ),
    OptionRow(
        "OptimDevice",
        Kind.TEXT,
        "'cpu'",
        "Where layers are trained: 'cpu', 'cuda:0' or 'hip:0'.",
        "tune.steps: device",
        _device("device"),
    ),
    OptionRow(
        "InferDevice",
        Kind.TEXT,
        "'cpu'",
        "Where activations are computed.",
        "tune.steps: inference_device",
        _device("inference_device"),
    ),
    _finetuning_row("FixedSeed", Kind.INT, "1705472343", "Random seed.", "seed"),
    _finetuning_row("DataSize", Kind.INT, "None", "Maximum number of samples; None uses all.", "samples"),
    _finetuning_row("BatchSize", Kind.INT, "1", "Samples in a mini-batch.", "batch_size"),
    _finetuning_row("NumBatches", Kind.INT, "1", "Mini-batches in an iteration.", "batches"),
    _finetuning_row("NumIterations", Kind.INT, "1000", "Training steps per layer.", "iterations"),
    _finetuning_row("LearningRate", Kind.FLOAT, "0.1; 1e-5 with adaquant", "Learning rate.", "learning_rate"),
    _finetuning_row("EarlyStop", Kind.BOOL, "False", "Stop a layer when its loss no longer falls.", "early_stop"),
    _finetuning_row(
        "LRAdjust",
        Kind.LIST,
        "()",
        "A threshold, and the learning rate for layers whose initial error is above it.",
        "learning_rate_adjust",
    ),
    _finetuning_row(
        "TargetOpType",
        Kind.LIST,
        "Conv, ConvTranspose, Gemm, MatMul, InstanceNormalization, LayerNormalization",
        "Operator types whose layers are tuned.",
        "operators",
    ),
    _finetuning_row(
        "SelectiveUpdate",
        Kind.BOOL,
        "False",
        "Keep a layer's result only if it does not make the model's outputs worse.",
        "selective",
    ),
    _finetuning_row("UpdateBias", Kind.BOOL, "True", "adaquant: train biases too.", "update_bias"),
    _finetuning_row(
        "OutputQDQ", Kind.BOOL, "False", "Measure the error after the Q/DQ pair of the layer's output.", "output_pair"
    ),
    _finetuning_row(
        "DropRatio",
        Kind.FLOAT,
        "1.0",
        "Probability that a layer's input comes from the quantized layers before it.",
        "quantized_inputs",
    ),
    _finetuning_row(
        "MemOptLevel",
        Kind.INT,
        "1",
        "0 keeps activations in memory, 2 on disk, 1 moves them to disk above 128 MB.",
        "memory",
    ),
    _finetuning_row("CacheDir", Kind.TEXT, "None", "Directory for activations on disk.", "cache_directory"),
    _finetuning_row("RegParam", Kind.FLOAT, "0.01", "adaround: weight of the regularization term.", "regularization"),
    _finetuning_row("BetaRange", Kind.LIST, "(20, 2)", "adaround: first and last exponent of that term.", "beta_range"),
    _finetuning_row(
        "WarmStart", Kind.FLOAT, "0.2", "adaround: fraction of the iterations before it is applied.", "warm_start"
    ),
    _finetuning_row(
        "LogPeriod", Kind.INT, "None", "Log the loss every N iterations; None logs ten times per layer.", "log_period"
    ),
    _finetuning_row("OutputIndex", Kind.INT, "None", "SelectiveUpdate: the output that is compared.", "output_index"),
    refuses(
        "Parallel",
        Kind.BOOL,
        "Train layers in parallel.",
        "each layer needs the outputs of the tuned layers before it, so layers are tuned in order; leave it out",
        harmless=False,
    ),
    same_result(
        "DynamicBatch",
        Kind.BOOL,
        "False",
        "Models with a dynamic batch axis.",
        "activations are stored sample by sample, for any batch axis",
    ),
    refuses(
        "RefModelPath",
        Kind.TEXT,
        "Another float model to learn from.",
        "layers learn from the model that is quantized; give the other model as model_input",
        harmless=None,
    ),
    refuses(
        "SelectMaxMemLayer",
        Kind.BOOL,
        "Only check whether the largest layer fits into memory.",
        "activations move to disk above 128 MB; use MemOptLevel=2 if memory is short",
        harmless=False,
    ),
    same_result("NumWorkers", Kind.INT, "1", "Workers of the data loader.", _LOADER),
    same_result("PinMemory", Kind.BOOL, "False", "Pinned memory of the data loader.", _LOADER),
    same_result("UseGDS", Kind.BOOL, "False", "GPU direct storage of the data loader.", _LOADER),
    refuses(
        "NumIterLR",
        Kind.LIST,
        "Pairs of iterations and learning rate in a search space.",
        "it is a list of choices for AutoSearch; use NumIterations and LearningRate",
        harmless=None,
    ),
)
"""Every key of ``FastFinetune``."""

_FINETUNE = (
    OptionRow(
        "FastFinetune",
        Kind.DICT,
        "{}",
        "Settings of AdaRound and AdaQuant; see the table below.",
        "tune.steps",
        nested("FastFinetune", FINETUNE_ROWS, "include_fast_ft", lambda draft: draft.finetune is not None),
    ),
)


def _cross_layer(key: str, name: str) -> Apply:
    def apply(draft: RecipeDraft, value: Any) -> RecipeDraft:
        if draft.equalize.cross_layer is None:
            return draft.with_note(f"{key} has no effect without include_cle")
        return with_field(draft, f"equalize.cross_layer.{name}", value)

    return apply


def _steps(draft: RecipeDraft, value: int) -> RecipeDraft:
    if value == 0:  # AMD's way to switch equalization off.
        return replace(draft, equalize=replace(draft.equalize, cross_layer=None))
    return _cross_layer("CLESteps", "steps")(draft, value)


def _smooth_alpha(draft: RecipeDraft, value: float) -> RecipeDraft:
    if draft.equalize.smooth is None:
        return draft.with_note("SmoothAlpha has no effect without include_sq")
    if not 0 <= value <= 1:
        raise OptionError(f"extra_options['SmoothAlpha'] must be between 0 and 1, got {value!r}")
    return with_field(draft, "equalize.smooth.alpha", float(value))


def _bias_correction(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, bias_correction=BiasCorrection() if value else None)


def _equalization(key: str, kind: Kind, default: str, meaning: str, name: str) -> OptionRow:
    return OptionRow(key, kind, default, meaning, f"equalize.cross_layer.{name}", _cross_layer(key, name))


def _belongs(key: str, kind: Kind, default: str, meaning: str, owner: str) -> OptionRow:
    """Return the row of an option that belongs to an unsupported algorithm, so it never has an effect."""
    return OptionRow(key, kind, default, meaning, f"nothing: {owner} is not supported", no_effect(key, owner))


ROWS = (
    _equalization(
        "CLEScaleAppendBias", Kind.BOOL, "True", "Count the bias in the range of its channel.", "include_bias"
    ),
    refuses(
        "CLEBalanceMethod",
        Kind.TEXT,
        "Definition of a channel's range.",
        "a channel's range is its largest magnitude; use 'max'",
        harmless="max",
    ),
    _equalization(
        "CLEWeightThreshold",
        Kind.FLOAT,
        "0.5",
        "Skip channels whose ranges add up to less than this.",
        "weight_threshold",
    ),
    _equalization("CLEScaleUseThreshold", Kind.BOOL, "True", "Apply CLEWeightThreshold.", "use_threshold"),
    _equalization(
        "CLETotalLayerDiffThreshold",
        Kind.FLOAT,
        "2e-7",
        "CLESteps=-1: the change of the weights that counts as converged.",
        "convergence",
    ),
    OptionRow(
        "CLESteps",
        Kind.INT,
        "1",
        "Sweeps of cross-layer equalization; 0 skips it, -1 repeats until convergence.",
        "equalize.cross_layer.steps",
        _steps,
    ),
    OptionRow(
        "SmoothAlpha",
        Kind.FLOAT,
        "0.5",
        "How much of the activations' range SmoothQuant moves into the weights, 0 to 1.",
        "equalize.smooth.alpha",
        _smooth_alpha,
    ),
    _belongs("RMatrixDim", Kind.INT, "4096", "Size of QuaRot's rotation.", "include_rotation"),
    _belongs("UseRandomHad", Kind.BOOL, "False", "QuaRot: use random Hadamard matrices.", "include_rotation"),
    _belongs("RConfigPath", Kind.TEXT, "None", "QuaRot: the file that names the layers.", "include_rotation"),
    *_GPTQ,
    OptionRow(
        "BiasCorrection",
        Kind.BOOL,
        "False",
        "Correct the shift of each channel's mean in its bias.",
        "tune.steps = (BiasCorrection(),)",
        _bias_correction,
    ),
    *mixed_precision.ROWS,
    *_FINETUNE,
)
