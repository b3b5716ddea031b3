"""Options of mixed precision: the dict ``AutoMixprecision``, in the keys of both generations of AMD Quark."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.enums import TYPES, own_member, spec_of
from quantry.onnx.options.draft import Draft, with_field
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, nested
from quantry.recipe import DataType, DerivedBias, FloatBias, FloatScale, LayerTarget, OwnBias, PerBlock, TensorSpec

_KEY = "AutoMixprecision"
_METRICS = ("l2", "cosine", "sqnr", "psnr")
_DIRECTIONS = ("speed", "quality")


def _place(key: str) -> str:
    return f"extra_options[{_KEY!r}][{key!r}]"


def _spec(key: str, value: Any, like: TensorSpec) -> TensorSpec:
    """Return what a tensor of another type becomes; the rest of it is as in the whole model."""
    where = _place(key)
    dtype = value if isinstance(value, DataType) else spec_of(own_member(value, TYPES, where), where).dtype
    if dtype.is_block:
        return TensorSpec(dtype, granularity=PerBlock())
    if not dtype.is_integer:
        return TensorSpec(dtype)
    return replace(like, dtype=dtype) if like.dtype.is_integer else TensorSpec(dtype)


def _type(key: str, *names: str) -> Apply:
    def apply(draft: Draft, value: Any) -> Draft:
        for name in names:
            like = draft.plan.activation if name == "activation" else draft.plan.weight
            spec = _spec(key, value, like)
            made = (DerivedBias() if spec.dtype == DataType.INT32 else OwnBias(spec)) if name == "bias" else spec
            draft = with_field(draft, f"mix.{name}", made)
        return draft

    return apply


def _sets(name: str) -> Apply:
    def apply(draft: Draft, value: Any) -> Draft:
        given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        changed: Draft = with_field(draft, f"mix.{name}", given)
        return changed

    return apply


def _target(draft: Draft, layer: Any, where: str) -> LayerTarget:
    if not hasattr(layer, "inputs") or not hasattr(layer, "weight"):
        raise RecipeError(f"{where} must be a QLayerConfig, a list of them or a dict of one, got {layer!r}")
    reads, weight, bias = layer.inputs(), layer.weight, layer.bias
    made = None if bias is None else bias.to_spec(f"{where}.bias")
    derived = made is not None and made.dtype == DataType.INT32 and isinstance(made.scale, FloatScale)
    return LayerTarget(
        None if reads is None else reads.to_spec(f"{where}.input_tensors"),
        None if weight is None else weight.to_spec(f"{where}.weight"),
        _kept_float(draft) if made is None else DerivedBias() if derived else OwnBias(made),
    )


def _kept_float(draft: Draft) -> FloatBias | None:
    """Return that a bias stays float where that was asked for of the whole model."""
    return draft.bias if isinstance(draft.bias, FloatBias) else None


def _layer_config(draft: Draft, value: Any) -> Draft:
    where = _place("TargetLayerConfig")
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise RecipeError(f"{where} must be a dict of one QLayerConfig, got {len(value)} entries; run one by one")
        ((layer, names),) = value.items()
        draft = with_field(draft, "mix.include", tuple(names))
        value = layer
    layers = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    changed: Draft = with_field(draft, "mix.targets", tuple(_target(draft, layer, where) for layer in layers))
    return changed


def _score(draft: Draft, value: Callable[..., float]) -> Draft:
    def score(outputs: Sequence[Any]) -> float:
        # Functions are written for tensors by those who have torch; nobody else needs it.
        torch = sys.modules.get("torch")
        first = outputs[0] if torch is None else torch.from_numpy(outputs[0])
        return float(value(first))

    if not callable(value):
        raise RecipeError(f"{_place('EvaluateFunction')} must be a function of the outputs, got {value!r}")
    changed: Draft = with_field(draft, "mix.score", score)
    return changed


def _metric(draft: Draft, value: str) -> Draft:
    if value not in _METRICS:
        raise RecipeError(
            f"{_place('MetricDefault')} must be one of {', '.join(_METRICS)}, got {value!r}"
            f"{nearest_spelling(value, _METRICS)}"
        )
    changed: Draft = with_field(draft, "mix.metric", value)
    return changed


def _threshold(draft: Draft, value: float | None) -> Draft:
    if value is None:
        raise RecipeError(
            f"{_place('MetricThreshold')} cannot be None: it would only analyse; use `quantry quantize --report`, "
            "which says how much each tensor costs"
        )
    changed: Draft = with_field(draft, "mix.threshold", float(value))
    return changed


def _direction(draft: Draft, value: str) -> Draft:
    if value not in _DIRECTIONS:
        raise RecipeError(
            f"{_place('MetricOptimizeObject')} must be 'speed' or 'quality', got {value!r}"
            f"{nearest_spelling(value, _DIRECTIONS)}"
        )
    return draft


def _row(key: str, kind: Kind, default: str, meaning: str, becomes: str, apply: Apply) -> OptionRow:
    return OptionRow(key, kind, default, meaning, f"mix.mixed.{becomes}", apply)


def _refused(key: str, kind: Kind, harmless: tuple[object, ...], meaning: str, instead: str) -> OptionRow:
    return OptionRow(key, kind, repr(harmless[0]), meaning, refused=instead, harmless=harmless)


MIX_ROWS = (
    _row(
        "TargetQuantType",
        Kind.ANY,
        "None",
        "Both at once.",
        "targets",
        _type("TargetQuantType", "activation", "weight"),
    ),
    _row(
        "ActTargetQuantType",
        Kind.ANY,
        "None",
        "What layers may read.",
        "targets",
        _type("ActTargetQuantType", "activation"),
    ),
    _row(
        "WeightTargetQuantType",
        Kind.ANY,
        "None",
        "What weights may become.",
        "targets",
        _type("WeightTargetQuantType", "weight"),
    ),
    _row(
        "BiasTargetQuantType",
        Kind.ANY,
        "None",
        "What biases may become.",
        "targets",
        _type("BiasTargetQuantType", "bias"),
    ),
    _row(
        "TargetLayerConfig",
        Kind.ANY,
        "None",
        "What layers may become: a QLayerConfig, a list of them, or a dict of one with the names of layers.",
        "targets",
        _layer_config,
    ),
    _row(
        "TargetOpType", Kind.LIST, "Conv, ConvTranspose, Gemm, MatMul", "Their types.", "operators", _sets("operators")
    ),
    _row("IncludeLayers", Kind.LIST, "[]", "Only these layers.", "include", _sets("include")),
    _row("TargetTensors", Kind.LIST, "[]", "Only the layers that write these.", "include", _sets("include")),
    _row("ExcludeLayers", Kind.LIST, "[]", "Not these layers.", "exclude", _sets("exclude")),
    _row("DataSize", Kind.INT, "8", "Samples that say how much a layer matters.", "samples", _sets("samples")),
    _row("OutputIndex", Kind.INT, "None", "Which output counts; None counts all.", "output", _sets("output")),
    _row("MetricOutputIndex", Kind.INT, "None", "As OutputIndex.", "output", _sets("output")),
    _row(
        "NoInputQDQShared",
        Kind.BOOL,
        "False",
        "Leave layers alone that share their input.",
        "unshared_inputs",
        _sets("unshared_inputs"),
    ),
    _row("Top1AccTarget", Kind.FLOAT, "None", "How far EvaluateFunction may fall.", "goal = WithinDrop", _sets("drop")),
    _row(
        "EvaluateFunction",
        Kind.ANY,
        "None",
        "From the stacked output, a torch tensor where torch is imported, to a score; larger is better.",
        "goal = WithinDrop",
        _score,
    ),
    _row("MetricEvaluateFn", Kind.ANY, "None", "As EvaluateFunction.", "goal = WithinDrop", _score),
    _row(
        "L2Target",
        Kind.FLOAT,
        "None",
        "How large the mean square error may become.",
        "goal = WithinError",
        _sets("error"),
    ),
    _row("NumTarget", Kind.INT, "None", "How many layers change.", "goal = LayerCount", _sets("count")),
    _row("MetricDefault", Kind.TEXT, "'l2'", "l2, cosine, sqnr or psnr.", "goal = WithinError", _metric),
    _row(
        "MetricThreshold",
        Kind.FLOAT,
        "None",
        "The limit of the metric or of the fall of MetricEvaluateFn; 0 lets all layers change.",
        "goal",
        _threshold,
    ),
    _row(
        "MetricOptimizeObject",
        Kind.TEXT,
        "'speed'",
        "Coarser targets are taken as far as the limit allows, finer ones as far as it demands, whatever this says.",
        "goal",
        _direction,
    ),
    _refused(
        "MetricDistanceFn",
        Kind.ANY,
        (None,),
        "A distance of outputs.",
        "use MetricDefault, or MetricEvaluateFn, which scores the outputs of one model",
    ),
    _refused(
        "SubgraphJson",
        Kind.TEXT,
        (None,),
        "Groups of nodes.",
        "layers that read the same tensor change together; name single ones with IncludeLayers and ExcludeLayers",
    ),
    _refused("TargetIndices", Kind.LIST, ([],), "Layers by number.", "name layers with IncludeLayers"),
    _refused("ExcludeIndices", Kind.LIST, ([],), "Layers by number.", "name layers with ExcludeLayers"),
    _refused(
        "AutoMixUseFastFT",
        Kind.BOOL,
        (False,),
        "Finetune while mixing.",
        "set include_fast_ft=True, which finetunes the mixed model",
    ),
    OptionRow(
        "SensitivityCacheFile",
        Kind.TEXT,
        "None",
        "Keep how much each layer matters.",
        satisfied="what was measured is kept in the store under its content and found again; no file is written",
    ),
    OptionRow("WorkerNum", Kind.INT, "1", "Threads.", satisfied="one walk measures all layers"),
    OptionRow(
        "DualQuantNodes",
        Kind.BOOL,
        "False",
        "Two pairs where types meet.",
        satisfied="readers of another type always have a pair of their own",
    ),
    OptionRow(
        "SharedParamMode",
        Kind.TEXT,
        "'propagate'",
        "What happens to shared weights.",
        satisfied="weights with several readers are always copied",
    ),
)
"""Every key of ``AutoMixprecision``."""

ROWS = (
    OptionRow(
        _KEY,
        Kind.DICT,
        "{}",
        "Settings of mixed precision, below.",
        "mix.mixed",
        nested(_KEY, MIX_ROWS, "include_auto_mp", lambda draft: draft.mix is not None),
    ),
)
