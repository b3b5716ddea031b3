"""Options of AdaRound and AdaQuant: the dict ``FastFinetune``."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.options.draft import Draft, with_field
from quantry.onnx.options.nested import nested
from quantry.onnx.options.option_row import Apply, Kind, OptionRow
from quantry.recipe import AdaQuant, AdaRound

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


def _row(key: str, kind: Kind, default: str, meaning: str, name: str) -> OptionRow:
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
    _row("FixedSeed", Kind.INT, "1705472343", "Of everything that is drawn at random.", "seed"),
    _row("DataSize", Kind.INT, "None", "Use at most this many samples; None uses all.", "samples"),
    _row("BatchSize", Kind.INT, "1", "Samples in a mini-batch.", "batch_size"),
    _row("NumBatches", Kind.INT, "1", "Mini-batches in an iteration.", "batches"),
    _row("NumIterations", Kind.INT, "1000", "Training steps for each layer.", "iterations"),
    _row("LearningRate", Kind.FLOAT, "0.1; 1e-5 with adaquant", "Step size.", "learning_rate"),
    _row("EarlyStop", Kind.BOOL, "False", "Stop a layer when its loss falls no more.", "early_stop"),
    _row(
        "LRAdjust",
        Kind.LIST,
        "()",
        "A threshold, and the learning rate for layers whose error is above it at first.",
        "learning_rate_adjust",
    ),
    _row(
        "TargetOpType",
        Kind.LIST,
        "Conv, ConvTranspose, Gemm, MatMul, InstanceNormalization, LayerNormalization",
        "Operator types whose layers are tuned.",
        "operators",
    ),
    _row(
        "SelectiveUpdate",
        Kind.BOOL,
        "False",
        "Take a layer's result only where the model's outputs do not come out worse.",
        "selective",
    ),
    _row("UpdateBias", Kind.BOOL, "True", "adaquant: train biases too.", "update_bias"),
    _row("OutputQDQ", Kind.BOOL, "False", "Judge a layer behind its output's Q/DQ pair.", "output_pair"),
    _row(
        "DropRatio",
        Kind.FLOAT,
        "1.0",
        "Probability that a layer is fed what the quantized layers before it give.",
        "quantized_inputs",
    ),
    _row("MemOptLevel", Kind.INT, "1", "0 keeps activations in memory, 2 on disk, 1 decides.", "memory"),
    _row("CacheDir", Kind.TEXT, "None", "Where activations on disk lie.", "cache_directory"),
    _row("RegParam", Kind.FLOAT, "0.01", "adaround: weight of the rounding term.", "regularization"),
    _row("BetaRange", Kind.LIST, "(20, 2)", "adaround: first and last exponent of that term.", "beta_range"),
    _row("WarmStart", Kind.FLOAT, "0.2", "adaround: part of the iterations before it sets in.", "warm_start"),
    _row("LogPeriod", Kind.INT, "None", "Log the loss every so many iterations; None logs ten times.", "log_period"),
    _row("OutputIndex", Kind.INT, "None", "SelectiveUpdate: which output is looked at.", "output_index"),
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

ROWS = (
    OptionRow(
        "FastFinetune",
        Kind.DICT,
        "{}",
        "Settings of AdaRound and AdaQuant, below.",
        "tune.steps",
        nested("FastFinetune", FINETUNE_ROWS, "include_fast_ft", lambda draft: draft.finetune is not None),
    ),
)
