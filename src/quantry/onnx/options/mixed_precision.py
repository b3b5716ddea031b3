"""Options of mixed precision: the dict ``AutoMixprecision``, with the keys of both generations of AMD Quark."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantry.errors import OptionError, require_choice
from quantry.onnx.enums import TYPES, own_member, spec_of
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, nested, same_result
from quantry.onnx.options.recipe_draft import RecipeDraft, with_field
from quantry.recipe import DataType, DerivedBias, FloatBias, FloatScale, LayerTarget, OwnBias, PerBlock, TensorSpec

_KEY = "AutoMixprecision"
_METRICS = ("l2", "cosine", "sqnr", "psnr")
_DIRECTIONS = ("speed", "quality")


def _where(key: str) -> str:
    return f"extra_options[{_KEY!r}][{key!r}]"


def _spec(key: str, value: Any, like: TensorSpec) -> TensorSpec:
    """Return the specification of a target type; symmetry and scale are those of the whole model."""
    option = _where(key)
    dtype = value if isinstance(value, DataType) else spec_of(own_member(value, TYPES, option), option).dtype
    if dtype.is_block:
        return TensorSpec(dtype, granularity=PerBlock())
    if not dtype.is_integer:
        return TensorSpec(dtype)
    # Floats have no symmetry or scale to copy.
    return replace(like, dtype=dtype) if like.dtype.is_integer else TensorSpec(dtype)


def _type(key: str, *names: str) -> Apply:
    def apply(draft: RecipeDraft, value: Any) -> RecipeDraft:
        for name in names:
            like = draft.plan.activation if name == "activation" else draft.plan.weight
            spec = _spec(key, value, like)
            tensor_type = (DerivedBias() if spec.dtype == DataType.INT32 else OwnBias(spec)) if name == "bias" else spec
            draft = with_field(draft, f"mix.{name}", tensor_type)
        return draft

    return apply


def _sets(name: str) -> Apply:
    def apply(draft: RecipeDraft, value: Any) -> RecipeDraft:
        setting = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        return with_field(draft, f"mix.{name}", setting)

    return apply


def _target(draft: RecipeDraft, layer: Any, option: str) -> LayerTarget:
    if not hasattr(layer, "inputs") or not hasattr(layer, "weight"):
        raise OptionError(f"{option} must be a QLayerConfig, a list of them or a dict of one, got {layer!r}")
    reads, weight, bias = layer.inputs(), layer.weight, layer.bias
    bias_spec = None if bias is None else bias.to_spec(f"{option}.bias")
    derived = bias_spec is not None and bias_spec.dtype == DataType.INT32 and isinstance(bias_spec.scale, FloatScale)
    return LayerTarget(
        None if reads is None else reads.to_spec(f"{option}.input_tensors"),
        None if weight is None else weight.to_spec(f"{option}.weight"),
        _kept_float(draft) if bias_spec is None else DerivedBias() if derived else OwnBias(bias_spec),
    )


def _kept_float(draft: RecipeDraft) -> FloatBias | None:
    """Return the float bias if biases of the whole model stay float."""
    return draft.bias if isinstance(draft.bias, FloatBias) else None


def _layer_config(draft: RecipeDraft, value: Any) -> RecipeDraft:
    option = _where("TargetLayerConfig")
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise OptionError(
                f"{option} must be a dict with one QLayerConfig, got {len(value)} entries; use one at a time"
            )
        ((layer, names),) = value.items()
        draft = with_field(draft, "mix.include", tuple(names))
        value = layer
    layers = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return with_field(draft, "mix.targets", tuple(_target(draft, layer, option) for layer in layers))


def _score(draft: RecipeDraft, value: Callable[..., float]) -> RecipeDraft:
    def score(outputs: Sequence[Any]) -> float:
        # Users of torch expect a tensor. If torch is not imported, the function cannot need one.
        torch = sys.modules.get("torch")
        first = outputs[0] if torch is None else torch.from_numpy(outputs[0])
        return float(value(first))

    if not callable(value):
        raise OptionError(f"{_where('EvaluateFunction')} must be a function of the outputs, got {value!r}")
    return with_field(draft, "mix.score", score)


def _metric(draft: RecipeDraft, value: str) -> RecipeDraft:
    require_choice(_where("MetricDefault"), value, _METRICS)
    return with_field(draft, "mix.metric", value)


def _threshold(draft: RecipeDraft, value: float | None) -> RecipeDraft:
    if value is None:
        raise OptionError(
            f"{_where('MetricThreshold')} cannot be None, with which AMD Quark only analyses; use "
            "`quantry quantize --report`, which shows the error of each tensor"
        )
    return with_field(draft, "mix.threshold", float(value))


def _direction(draft: RecipeDraft, value: str) -> RecipeDraft:
    require_choice(_where("MetricOptimizeObject"), value, _DIRECTIONS)
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
        "Target type of activations and weights that have no other target.",
        "targets",
        _type("TargetQuantType", "activation", "weight"),
    ),
    _row(
        "ActTargetQuantType",
        Kind.ANY,
        "None",
        "Target type of activations.",
        "targets",
        _type("ActTargetQuantType", "activation"),
    ),
    _row(
        "WeightTargetQuantType",
        Kind.ANY,
        "None",
        "Target type of weights.",
        "targets",
        _type("WeightTargetQuantType", "weight"),
    ),
    _row(
        "BiasTargetQuantType",
        Kind.ANY,
        "None",
        "Target type of biases.",
        "targets",
        _type("BiasTargetQuantType", "bias"),
    ),
    _row(
        "TargetLayerConfig",
        Kind.ANY,
        "None",
        "Target types: a QLayerConfig, a list of them, or a dict of one with the names of layers.",
        "targets",
        _layer_config,
    ),
    _row(
        "TargetOpType",
        Kind.LIST,
        "Conv, ConvTranspose, Gemm, MatMul",
        "Operator types of the layers that may change.",
        "operators",
        _sets("operators"),
    ),
    _row("IncludeLayers", Kind.LIST, "[]", "Only these layers may change.", "include", _sets("include")),
    _row(
        "TargetTensors",
        Kind.LIST,
        "[]",
        "Only the layers that write these tensors may change.",
        "include",
        _sets("include"),
    ),
    _row("ExcludeLayers", Kind.LIST, "[]", "These layers may not change.", "exclude", _sets("exclude")),
    _row("DataSize", Kind.INT, "8", "Samples that sensitivity is measured on.", "samples", _sets("samples")),
    _row("OutputIndex", Kind.INT, "None", "The output that is compared; None compares all.", "output", _sets("output")),
    _row("MetricOutputIndex", Kind.INT, "None", "As OutputIndex.", "output", _sets("output")),
    _row(
        "NoInputQDQShared",
        Kind.BOOL,
        "False",
        "Skip layers whose input other nodes read too.",
        "unshared_inputs",
        _sets("unshared_inputs"),
    ),
    _row(
        "Top1AccTarget",
        Kind.FLOAT,
        "None",
        "How far the score of EvaluateFunction may fall.",
        "goal = WithinDrop",
        _sets("drop"),
    ),
    _row(
        "EvaluateFunction",
        Kind.ANY,
        "None",
        "Returns a score for the stacked first output, a torch tensor if torch is imported; larger is better.",
        "goal = WithinDrop",
        _score,
    ),
    _row("MetricEvaluateFn", Kind.ANY, "None", "As EvaluateFunction.", "goal = WithinDrop", _score),
    _row(
        "L2Target",
        Kind.FLOAT,
        "None",
        "Limit of the mean squared error.",
        "goal = WithinError",
        _sets("error"),
    ),
    _row("NumTarget", Kind.INT, "None", "Number of layers that change.", "goal = LayerCount", _sets("count")),
    _row("MetricDefault", Kind.TEXT, "'l2'", "l2, cosine, sqnr or psnr.", "goal = WithinError", _metric),
    _row(
        "MetricThreshold",
        Kind.FLOAT,
        "None",
        "Limit of the metric, or of the drop of MetricEvaluateFn; 0 changes all layers.",
        "goal",
        _threshold,
    ),
    _row(
        "MetricOptimizeObject",
        Kind.TEXT,
        "'speed'",
        "No effect: coarser targets are used as far as the limit allows, finer ones as far as it requires.",
        "goal",
        _direction,
    ),
    _refused(
        "MetricDistanceFn",
        Kind.ANY,
        (None,),
        "A distance between outputs.",
        "use MetricDefault, or MetricEvaluateFn, which scores the outputs of one model",
    ),
    _refused(
        "SubgraphJson",
        Kind.TEXT,
        (None,),
        "Groups of nodes.",
        "layers that read the same tensor change together; select layers with IncludeLayers and ExcludeLayers",
    ),
    _refused("TargetIndices", Kind.LIST, ([],), "Layers by number.", "name layers with IncludeLayers"),
    _refused("ExcludeIndices", Kind.LIST, ([],), "Layers by number.", "name layers with ExcludeLayers"),
    _refused(
        "AutoMixUseFastFT",
        Kind.BOOL,
        (False,),
        "Finetune during the search for types.",
        "set include_fast_ft=True, which finetunes the mixed model",
    ),
    same_result(
        "SensitivityCacheFile",
        Kind.TEXT,
        "None",
        "A file that caches sensitivities.",
        "sensitivities are cached like the results of all stages; no file is written",
    ),
    same_result("WorkerNum", Kind.INT, "1", "Number of threads.", "one pass measures all layers"),
    same_result(
        "DualQuantNodes",
        Kind.BOOL,
        "False",
        "Two Q/DQ pairs where types change.",
        "readers of another type always have a separate Q/DQ pair",
    ),
    same_result(
        "SharedParamMode",
        Kind.TEXT,
        "'propagate'",
        "How shared weights are treated.",
        "weights with several readers are always copied",
    ),
)
"""Every key of ``AutoMixprecision``."""

ROWS = (
    OptionRow(
        _KEY,
        Kind.DICT,
        "{}",
        "Settings of mixed precision; see the table below.",
        "mix.mixed",
        nested(_KEY, MIX_ROWS, "include_auto_mp", lambda draft: draft.mix is not None),
    ),
)
