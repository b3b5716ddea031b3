"""Options of GPTQ: ``UseGPTQ`` and the dict ``GPTQParams``.

Options of AdaRound and AdaQuant: the dict ``FastFinetune``.

Options of equalization and of algorithms that change weights.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.options import mixed_precision
from quantry.onnx.options.draft import Draft, with_field
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, nested, sets, without_bearing
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


def _use(draft: Draft, value: bool) -> Draft:
    if not value:
        return draft
    # As in AMD Quark only weights are quantized then, and in the order in which they stand.
    plan = replace(draft.plan, weights_only=True)
    return replace(draft, gptq=Gptq(order_by_activation=False), plan=plan)


def _bits(draft: Draft, value: int) -> Draft:
    if value not in _WIDTHS:
        raise RecipeError(
            f"extra_options['GPTQParams']['Bits'] must be one of {', '.join(map(str, _WIDTHS))}, got {value}"
        )
    changed: Draft = with_field(draft, "plan.weight.dtype", _WIDTHS[value])
    return changed


def _group(draft: Draft, value: int) -> Draft:
    if value == -1:
        return draft
    changed: Draft = with_field(draft, "plan.weight.granularity", PerGroup(value))
    return changed


def _granularity(draft: Draft, value: bool) -> Draft:
    changed: Draft = with_field(draft, "plan.weight.granularity", PerChannel() if value else PerTensor())
    return changed


def _least_squares(draft: Draft, value: bool) -> Draft:
    changed: Draft = with_field(draft, "scale.weight", MinMSE() if value else MinMax())
    return changed


def _row(key: str, kind: Kind, default: str, meaning: str, becomes: str, apply: Apply) -> OptionRow:
    return OptionRow(key, kind, default, meaning, becomes, apply)


def _tunes(name: str) -> dict[str, Any]:
    return {"becomes": f"tune.steps: Gptq.{name}", "apply": sets(f"gptq.{name}")}


GPTQ_ROWS = (
    _row("Bits", Kind.INT, "the weight's", "Width of weights: 4, 8 or 16.", "plan.weight.dtype", _bits),
    _row(
        "PerChannel",
        Kind.BOOL,
        "False",
        "One scale for each channel of a weight.",
        "plan.weight.granularity = PerChannel()",
        _granularity,
    ),
    _row(
        "GroupSize",
        Kind.INT,
        "-1",
        "Values that share a scale; -1 for all of a tensor or channel.",
        "plan.weight.granularity = PerGroup(size)",
        _group,
    ),
    _row("MSE", Kind.BOOL, "False", "Choose ranges by least squares.", "scale.weight", _least_squares),
    _row(
        "WeightSymmetric",
        Kind.BOOL,
        "True",
        "Fix zero points at the centre of the type.",
        "plan.weight.symmetric",
        sets("plan.weight.symmetric"),
    ),
    _row("BlockSize", Kind.INT, "128", "Columns rounded before the rest is updated.", **_tunes("block_size")),
    _row("PercDamp", Kind.FLOAT, "0.01", "Damping, as a part of the mean diagonal.", **_tunes("damping")),
    _row("ActOrder", Kind.BOOL, "False", "Columns with the strongest inputs first.", **_tunes("order_by_activation")),
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
        "Settings of GPTQ, below.",
        "tune.steps, plan.weight",
        nested("GPTQParams", GPTQ_ROWS, "UseGPTQ", lambda draft: draft.gptq is not None),
    ),
)


_ALGORITHMS: dict[str, AdaRound | AdaQuant] = {"adaround": AdaRound(), "adaquant": AdaQuant()}
_FULL_NAMES = {"cpu:0": "cpu", "cuda": "cuda:0", "hip": "hip:0"}
_LOADER = "activations lie in memory or in one file and are read as they are; no loader has workers"


def _algorithm(draft: Draft, value: str) -> Draft:
    step = _ALGORITHMS.get(value.lower())
    if step is None:
        raise RecipeError(
            f"extra_options['FastFinetune']['OptimAlgorithm'] must be 'adaround' or 'adaquant', got {value!r}"
            f"{nearest_spelling(value, _ALGORITHMS)}"
        )
    return replace(draft, finetune=step)


def _sets(key: str, name: str) -> Apply:
    def apply(draft: Draft, value: Any) -> Draft:
        assert draft.finetune is not None
        if name not in {part.name for part in fields(draft.finetune)}:
            return draft.noted(f"FastFinetune: {key} has no effect with {type(draft.finetune).__name__}")
        given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        changed: Draft = with_field(draft, f"finetune.{name}", given)
        return changed

    return apply


def _device(name: str) -> Apply:
    def apply(draft: Draft, value: str) -> Draft:
        changed: Draft = with_field(draft, f"finetune.{name}", _FULL_NAMES.get(value.lower(), value.lower()))
        return changed

    return apply


def _finetuning_row(key: str, kind: Kind, default: str, meaning: str, name: str) -> OptionRow:
    return OptionRow(key, kind, default, meaning, f"tune.steps: {name}", _sets(key, name))


def _refused(key: str, kind: Kind, harmless: object, meaning: str, instead: str) -> OptionRow:
    return OptionRow(key, kind, repr(harmless), meaning, refused=instead, harmless=(harmless,))


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
    _finetuning_row("FixedSeed", Kind.INT, "1705472343", "Of everything that is drawn at random.", "seed"),
    _finetuning_row("DataSize", Kind.INT, "None", "Use at most this many samples; None uses all.", "samples"),
    _finetuning_row("BatchSize", Kind.INT, "1", "Samples in a mini-batch.", "batch_size"),
    _finetuning_row("NumBatches", Kind.INT, "1", "Mini-batches in an iteration.", "batches"),
    _finetuning_row("NumIterations", Kind.INT, "1000", "Training steps for each layer.", "iterations"),
    _finetuning_row("LearningRate", Kind.FLOAT, "0.1; 1e-5 with adaquant", "Step size.", "learning_rate"),
    _finetuning_row("EarlyStop", Kind.BOOL, "False", "Stop a layer when its loss falls no more.", "early_stop"),
    _finetuning_row(
        "LRAdjust",
        Kind.LIST,
        "()",
        "A threshold, and the learning rate for layers whose error is above it at first.",
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
        "Take a layer's result only where the model's outputs do not come out worse.",
        "selective",
    ),
    _finetuning_row("UpdateBias", Kind.BOOL, "True", "adaquant: train biases too.", "update_bias"),
    _finetuning_row("OutputQDQ", Kind.BOOL, "False", "Judge a layer behind its output's Q/DQ pair.", "output_pair"),
    _finetuning_row(
        "DropRatio",
        Kind.FLOAT,
        "1.0",
        "Probability that a layer is fed what the quantized layers before it give.",
        "quantized_inputs",
    ),
    _finetuning_row("MemOptLevel", Kind.INT, "1", "0 keeps activations in memory, 2 on disk, 1 decides.", "memory"),
    _finetuning_row("CacheDir", Kind.TEXT, "None", "Where activations on disk lie.", "cache_directory"),
    _finetuning_row("RegParam", Kind.FLOAT, "0.01", "adaround: weight of the rounding term.", "regularization"),
    _finetuning_row("BetaRange", Kind.LIST, "(20, 2)", "adaround: first and last exponent of that term.", "beta_range"),
    _finetuning_row(
        "WarmStart", Kind.FLOAT, "0.2", "adaround: part of the iterations before it sets in.", "warm_start"
    ),
    _finetuning_row(
        "LogPeriod", Kind.INT, "None", "Log the loss every so many iterations; None logs ten times.", "log_period"
    ),
    _finetuning_row("OutputIndex", Kind.INT, "None", "SelectiveUpdate: which output is looked at.", "output_index"),
    _refused(
        "Parallel",
        Kind.BOOL,
        False,  # noqa: FBT003
        "Train layers at the same time.",
        "each layer is fed what the tuned layers before it give, so they are tuned in order; leave it out",
    ),
    OptionRow(
        "DynamicBatch",
        Kind.BOOL,
        "False",
        "Models whose batch axis has no length.",
        satisfied="activations are kept sample by sample, whatever the model's batch axis",
    ),
    _refused(
        "RefModelPath",
        Kind.TEXT,
        None,
        "Another float model to learn from.",
        "layers learn from the model that is quantized; give that one as model_input",
    ),
    _refused(
        "SelectMaxMemLayer",
        Kind.BOOL,
        False,  # noqa: FBT003
        "Only try whether the largest layer fits the memory.",
        "activations move to disk above 128 MB; use MemOptLevel=2 where memory is short",
    ),
    OptionRow("NumWorkers", Kind.INT, "1", "Workers of the loader.", satisfied=_LOADER),
    OptionRow("PinMemory", Kind.BOOL, "False", "Pinned memory of the loader.", satisfied=_LOADER),
    OptionRow("UseGDS", Kind.BOOL, "False", "Direct storage of the loader.", satisfied=_LOADER),
    OptionRow(
        "NumIterLR",
        Kind.LIST,
        "None",
        "Pairs of iterations and learning rate, inside a search space.",
        refused="it is a list of choices for AutoSearch; here use NumIterations and LearningRate",
        harmless=(None,),
    ),
)
"""Every key of ``FastFinetune``."""

_FINETUNE = (
    OptionRow(
        "FastFinetune",
        Kind.DICT,
        "{}",
        "Settings of AdaRound and AdaQuant, below.",
        "tune.steps",
        nested("FastFinetune", FINETUNE_ROWS, "include_fast_ft", lambda draft: draft.finetune is not None),
    ),
)


def _cross_layer(key: str, name: str) -> Apply:
    def apply(draft: Draft, value: Any) -> Draft:
        if draft.equalize.cross_layer is None:
            return draft.noted(f"{key} has no effect without include_cle")
        changed: Draft = with_field(draft, f"equalize.cross_layer.{name}", value)
        return changed

    return apply


def _steps(draft: Draft, value: int) -> Draft:
    if value == 0:
        return replace(draft, equalize=replace(draft.equalize, cross_layer=None))
    return _cross_layer("CLESteps", "steps")(draft, value)


def _smooth_alpha(draft: Draft, value: float) -> Draft:
    if draft.equalize.smooth is None:
        return draft.noted("SmoothAlpha has no effect without include_sq")
    if not 0 <= value <= 1:
        raise RecipeError(f"extra_options['SmoothAlpha'] must be from 0 to 1, got {value!r}")
    changed: Draft = with_field(draft, "equalize.smooth.alpha", float(value))
    return changed


def _bias_correction(draft: Draft, value: bool) -> Draft:
    return replace(draft, bias_correction=BiasCorrection() if value else None)


def _equalization(key: str, kind: Kind, default: str, meaning: str, name: str) -> OptionRow:
    return OptionRow(key, kind, default, meaning, f"equalize.cross_layer.{name}", _cross_layer(key, name))


def _belongs(key: str, kind: Kind, default: str, meaning: str, owner: str) -> OptionRow:
    """An option of an algorithm whose switch is refused, so that the option never has anything to set."""
    return OptionRow(key, kind, default, meaning, f"nothing: {owner} is refused", without_bearing(key, owner))


ROWS = (
    _equalization(
        "CLEScaleAppendBias", Kind.BOOL, "True", "Let a bias count in the range of its channel.", "include_bias"
    ),
    OptionRow(
        "CLEBalanceMethod",
        Kind.TEXT,
        "'max'",
        "What a channel's range is.",
        refused="a channel's range is its largest magnitude: 'max'",
        harmless=("max",),
    ),
    _equalization(
        "CLEWeightThreshold", Kind.FLOAT, "0.5", "Channels with less weight than this stay.", "weight_threshold"
    ),
    _equalization("CLEScaleUseThreshold", Kind.BOOL, "True", "Whether that threshold counts.", "use_threshold"),
    _equalization(
        "CLETotalLayerDiffThreshold", Kind.FLOAT, "2e-7", "CLESteps=-1: the change that counts as rest.", "convergence"
    ),
    OptionRow(
        "CLESteps",
        Kind.INT,
        "1",
        "Sweeps of cross-layer equalization; 0 does none, -1 repeats until the weights rest.",
        "equalize.cross_layer.steps",
        _steps,
    ),
    OptionRow(
        "SmoothAlpha",
        Kind.FLOAT,
        "0.5",
        "How much SmoothQuant moves from activations to weights, 0 to 1.",
        "equalize.smooth.alpha",
        _smooth_alpha,
    ),
    _belongs("RMatrixDim", Kind.INT, "4096", "Size of QuaRot's rotation.", "include_rotation"),
    _belongs("UseRandomHad", Kind.BOOL, "False", "QuaRot: random Hadamard matrices.", "include_rotation"),
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
