"""The fields of `QuantizationConfig`."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import onnx

from quantry.errors import OptionError, nearest_spelling
from quantry.facts.operators import MATRIX_PRODUCTS
from quantry.onnx.enums import (
    FORMATS,
    METHODS,
    TYPES,
    PowerOfTwoMethod,
    QuantFormat,
    VitisQuantFormat,
    method_of,
    own_member,
    spec_of,
)
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, refuses, sets, sets_field
from quantry.onnx.options.preprocessing import WRITTEN_DIFFERENTLY
from quantry.onnx.options.recipe_draft import MixDraft, RecipeDraft, refuse, with_field
from quantry.plan.rules import RULE_OF_OPERATOR
from quantry.recipe import (
    AdaRound,
    CrossLayer,
    Dynamic,
    FixNeuron,
    FloatBias,
    MinMax,
    MinMSE,
    NpuConversions,
    NpuLimits,
    PerChannel,
    PowerOfTwoScale,
    Qdq,
    QOperator,
    SmoothQuant,
    Subgraph,
)

_DYNAMIC_OPERATORS = ("Conv", *MATRIX_PRODUCTS)
_LIST_OF_NAMES = "Names of nodes or of their outputs."


def _activation_type(draft: RecipeDraft, value: object) -> RecipeDraft:
    spec = spec_of(own_member(value, TYPES, "activation_type"), "activation_type")
    return replace(draft, plan=replace(draft.plan, activation=replace(spec, symmetric=not spec.dtype.is_integer)))


def _weight_type(draft: RecipeDraft, value: object) -> RecipeDraft:
    spec = spec_of(own_member(value, TYPES, "weight_type"), "weight_type")
    return replace(draft, plan=replace(draft.plan, weight=replace(spec, symmetric=spec.dtype.is_signed)))


def _calibrate_method(draft: RecipeDraft, value: object) -> RecipeDraft:
    member = own_member(value, METHODS, "calibrate_method")
    method = method_of(member, "calibrate_method")
    power_of_two = isinstance(member, PowerOfTwoMethod)
    # Percentile and Entropy estimate a range from samples; the extremes of weights are known exactly.
    weight = method if power_of_two or isinstance(method, MinMSE) else MinMax()
    draft = replace(draft, scale=replace(draft.scale, activation=method, weight=weight))
    if power_of_two:
        for path in ("plan.activation", "plan.weight"):
            group, name = path.split(".")
            if getattr(getattr(draft, group), name).dtype.is_integer:
                draft = with_field(draft, f"{path}.scale", PowerOfTwoScale())
    return draft


def _quant_format(draft: RecipeDraft, value: object) -> RecipeDraft:
    member = own_member(value, FORMATS, "quant_format")
    if member is QuantFormat.QDQ:
        return replace(draft, format=Qdq())
    if member.name == "QOperator":
        return replace(draft, format=QOperator())
    if member is VitisQuantFormat.FixNeuron:
        # FixNeuron has no zero points.
        draft = with_field(draft, "plan.activation.symmetric", True)  # noqa: FBT003
        return replace(draft, format=FixNeuron())
    return replace(draft, format=None, prepare=replace(draft.prepare, npu=WRITTEN_DIFFERENTLY))


def _npu_cnn(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value and draft.npu:  # A QConfig with power-of-two scales has switched it on.
        prepare, scale = replace(draft.prepare, npu=None), replace(draft.scale, npu=None)
        return replace(draft, npu=False, prepare=prepare, scale=scale)
    if not value:
        return draft
    plan = replace(draft.plan, activation=replace(draft.plan.activation, symmetric=True))
    prepare = replace(draft.prepare, npu=NpuConversions())
    return replace(draft, npu=True, plan=plan, prepare=prepare, scale=replace(draft.scale, npu=NpuLimits()))


def _npu_transformer(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value:
        return draft
    draft = _operators(draft, MATRIX_PRODUCTS)
    plan = replace(draft.plan, constant_right_operand_only=True)
    return replace(draft, plan=plan, prepare=replace(draft.prepare, npu=draft.prepare.npu or WRITTEN_DIFFERENTLY))


def _operators(draft: RecipeDraft, operators: Iterable[str]) -> RecipeDraft:
    return with_field(draft, "plan.selection.operators", tuple(operators))


def _with_operators(draft: RecipeDraft, operators: Iterable[str], option: str) -> tuple[RecipeDraft, tuple[str, ...]]:
    """Return the draft with operator types that no rule knows, and all types as a tuple."""
    listed = tuple(operators)
    for operator in listed:
        if operator not in RULE_OF_OPERATOR and not onnx.defs.has(operator):
            raise OptionError(
                f"{option} must hold operator types of ONNX, got {operator!r}"
                f"{nearest_spelling(str(operator), RULE_OF_OPERATOR)}"
            )
    unknown = tuple(operator for operator in listed if operator not in RULE_OF_OPERATOR)
    return with_field(draft, "plan.extra_operators", (*draft.plan.extra_operators, *unknown)), listed


def _op_types(draft: RecipeDraft, value: Iterable[str]) -> RecipeDraft:
    draft, listed = _with_operators(draft, value, "op_types_to_quantize")
    # One pattern for all types: some of them may be absent from the model, but not all.
    return _operators(draft, (f"^({'|'.join(listed)})$",)) if listed else draft


def _extra_op_types(draft: RecipeDraft, value: Iterable[str]) -> RecipeDraft:
    draft, listed = _with_operators(draft, value, "extra_op_types_to_quantize")
    # Types that a rule keeps float are wanted too.
    draft = with_field(draft, "plan.extra_operators", tuple(dict.fromkeys((*draft.plan.extra_operators, *listed))))
    operators = draft.plan.selection.operators
    if not listed or not operators:
        return draft
    if operators[0].startswith("^"):
        # op_types_to_quantize has made one pattern of all types; extend its alternatives.
        return _operators(draft, (f"{operators[0].removesuffix(')$')}|{'|'.join(listed)})$",))
    return _operators(draft, (*operators, *listed))


def _names(path: str) -> Apply:
    return lambda draft, value: sets(path)(draft, tuple(value))


def _subgraphs(draft: RecipeDraft, value: Iterable[Any]) -> RecipeDraft:
    subgraphs = []
    for entry in value:
        if not isinstance(entry, tuple | list) or len(entry) != 2 or any(isinstance(names, str) for names in entry):
            raise OptionError(
                "subgraphs_to_exclude must hold pairs ([first nodes], [last nodes]), "
                f"got {entry!r} in QuantizationConfig.subgraphs_to_exclude"
            )
        subgraphs.append(Subgraph(tuple(entry[0]), tuple(entry[1])))
    return with_field(draft, "plan.selection.exclude_subgraphs", tuple(subgraphs))


def _per_channel(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value:
        return draft
    if draft.plan.weight.dtype.is_block:
        raise refuse("per_channel", value, "block formats have no scales per channel; use False")
    return with_field(draft, "plan.weight.granularity", PerChannel())


def _include_cle(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, equalize=replace(draft.equalize, cross_layer=CrossLayer() if value else None))


def _smooth_quant(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, equalize=replace(draft.equalize, smooth=SmoothQuant(alpha=0.5) if value else None))


def _dynamic(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value:
        return draft
    # The operators that have an integer kernel with a dynamic input scale.
    operators = draft.plan.selection.operators or (*_DYNAMIC_OPERATORS, *draft.plan.extra_operators)
    plan = replace(draft.plan, weights_only=True, selection=replace(draft.plan.selection, operators=operators))
    return replace(draft, plan=plan, bias=FloatBias(), format=Dynamic())


def _mixed(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, mix=MixDraft() if value else None)


def _fast_finetune(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, finetune=AdaRound() if value else None)


def _debug(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, log_severity=0) if value and draft.log_severity is None else draft


def _switch(key: str, default: str, meaning: str, becomes: str, apply: Apply) -> OptionRow:
    return OptionRow(key, Kind.BOOL, default, meaning, becomes, apply)


def _name_list(key: str, meaning: str, path: str) -> OptionRow:
    return OptionRow(key, Kind.LIST, "[]", meaning, path, _names(path))


ROWS = (
    OptionRow("activation_type", Kind.MEMBER, "QInt8", "Type of activations.", "plan.activation", _activation_type),
    OptionRow("weight_type", Kind.MEMBER, "QInt8", "Type of weights.", "plan.weight", _weight_type),
    OptionRow(
        "calibrate_method",
        Kind.MEMBER,
        "CalibrationMethod.MinMax",
        "How ranges are chosen; a PowerOfTwoMethod gives power-of-two scales.",
        "scale.activation, scale.weight, plan.*.scale",
        _calibrate_method,
    ),
    OptionRow(
        "quant_format",
        Kind.MEMBER,
        "QuantFormat.QDQ",
        "The format. FixNeuron writes FixNeuron nodes; an extended or Vitis QDQ format writes com.microsoft pairs, or "
        "com.amd.quark pairs for types that com.microsoft does not have.",
        "emit.format",
        _quant_format,
    ),
    _switch("per_channel", "False", "One weight scale per channel.", "plan.weight.granularity", _per_channel),
    sets_field("reduce_range", Kind.BOOL, "False", "Use one bit less for weights.", "scale.reduce_range"),
    _name_list("input_nodes", "Nodes before these stay float.", "plan.selection.input_nodes"),
    _name_list("output_nodes", "Nodes after these stay float.", "plan.selection.output_nodes"),
    _name_list("nodes_to_quantize", f"Quantize only these. {_LIST_OF_NAMES}", "plan.selection.include"),
    _name_list(
        "nodes_to_exclude",
        "Do not quantize these; an entry that starts with ^ is a regular expression.",
        "plan.selection.exclude",
    ),
    OptionRow(
        "op_types_to_quantize",
        Kind.LIST,
        "[]",
        "Quantize only these operator types; empty for all that have a rule. Of a type without a rule, computed inputs "
        "and results are quantized.",
        "plan.selection.operators, plan.extra_operators",
        _op_types,
    ),
    OptionRow(
        "extra_op_types_to_quantize",
        Kind.LIST,
        "[]",
        "Also quantize these operator types, with or without a rule.",
        "plan.selection.operators, plan.extra_operators",
        _extra_op_types,
    ),
    OptionRow(
        "subgraphs_to_exclude",
        Kind.LIST,
        "[]",
        "Pairs of first and last nodes; nodes between them are not quantized.",
        "plan.selection.exclude_subgraphs",
        _subgraphs,
    ),
    OptionRow(
        "execution_providers",
        Kind.LIST,
        "['CPUExecutionProvider']",
        "onnxruntime's execution providers for calibration.",
        "observe.providers",
        _names("observe.providers"),
    ),
    sets_field(
        "optimize_model",
        Kind.BOOL,
        "True",
        "Fold BatchNormalization; SimplifyModel folds constants.",
        "prepare.fold_batch_norm",
    ),
    sets_field(
        "convert_fp16_to_fp32",
        Kind.BOOL,
        "False",
        "Convert a float16 model to float32 first.",
        "prepare.float16_to_float32",
    ),
    _switch(
        "use_external_data_format",
        "False",
        "Store weights outside the model file; above 1.5 GB they always are.",
        "how the file is written",
        sets("external_data"),
    ),
    _switch(
        "include_cle",
        "False; True in the named configurations",
        "Cross-layer equalization.",
        "equalize.cross_layer",
        _include_cle,
    ),
    _switch(
        "enable_npu_cnn", "False", "Apply the rules of AMD's integer NPU.", "prepare.npu, scale.npu, bias", _npu_cnn
    ),
    _switch(
        "enable_npu_transformer",
        "False",
        "Quantize only Gemm and MatMul with a constant operand.",
        "plan.selection.operators, plan.constant_right_operand_only",
        _npu_transformer,
    ),
    _switch("print_summary", "True", "Log a summary of the result.", "logger quantry, INFO", sets("summary")),
    _switch(
        "ignore_warnings",
        "True",
        "False logs options without effect as warnings. Random calibration data always gives a warning.",
        "logger quantry",
        sets("quiet"),
    ),
    OptionRow(
        "log_severity_level",
        Kind.INT,
        "None",
        "Logging level during the call, from 0 (everything) to 4 (nothing).",
        "logger quantry",
        sets("log_severity"),
    ),
    _switch(
        "specific_tensor_precision",
        "False",
        "Apply MixedPrecisionTensor.",
        "plan.tensors",
        sets("tensor_types"),
    ),
    _switch(
        "use_dynamic_quant",
        "False",
        "Quantize activations of Conv, Gemm and MatMul at run time; needs no data.",
        "emit.format = Dynamic(), plan.weights_only",
        _dynamic,
    ),
    _switch(
        "convert_nchw_to_nhwc",
        "False",
        "Change the model's inputs to channels-last; the data must be channels-last too.",
        "a Transpose after every input with four axes",
        sets("channels_last"),
    ),
    _switch(
        "include_sq",
        "False",
        "SmoothQuant, with SmoothAlpha.",
        "equalize.smooth = SmoothQuant(0.5)",
        _smooth_quant,
    ),
    refuses(
        "include_rotation",
        Kind.BOOL,
        "QuaRot.",
        "QuaRot is not supported yet; the nearest is include_cle=True",
        harmless=False,
    ),
    _switch(
        "include_auto_mp",
        "False",
        "Mixed precision, with the settings in AutoMixprecision.",
        "mix.mixed = MixedPrecision(...)",
        _mixed,
    ),
    _switch(
        "include_fast_ft",
        "False",
        "AdaRound or AdaQuant, with the settings in FastFinetune; needs torch.",
        "tune.steps = (AdaRound(),)",
        _fast_finetune,
    ),
    _switch(
        "debug_mode",
        "False",
        "Log every step. Intermediate models are not written: the result of quantry.quantize has the result of every "
        "stage.",
        "logger quantry, DEBUG",
        _debug,
    ),
    refuses(
        "crypto_mode",
        Kind.BOOL,
        "Write nothing readable to disk.",
        "the cache and temporary files are not encrypted; get the model in memory with model_output=None, and use no "
        "cache with quantry.quantize(..., store=None)",
        harmless=False,
    ),
)
