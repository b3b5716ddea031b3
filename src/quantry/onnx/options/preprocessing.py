"""Options of preprocessing: clean-up of the float graph, conversions, and the rules of integer NPUs."""

import re
from dataclasses import fields, replace

from quantry.errors import OptionError
from quantry.facts.operators import ALIGNED
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, refuses, same_result, sets_field
from quantry.onnx.options.recipe_draft import RecipeDraft, with_field
from quantry.recipe import NpuConversions, NpuLimits

_SIMULATED = ("leaky_relu", "sigmoid_to_hard_sigmoid", "hard_sigmoid", "average_pool", "reduce_mean", "clip")
NO_CONVERSIONS = NpuConversions(**{entry.name: False for entry in fields(NpuConversions)})
"""All switches off."""

WRITTEN_DIFFERENTLY = NpuConversions(**dict.fromkeys(_SIMULATED, False))
"""Only the conversions that do not change the function, which extended formats use."""


def conversion(name: str) -> Apply:
    """Return a function that switches one conversion on or off, independent of the others."""

    def apply(draft: RecipeDraft, value: bool) -> RecipeDraft:
        conversions = replace(draft.prepare.npu or NO_CONVERSIONS, **{name: value})
        return _with_conversions(draft, conversions)

    return apply


def _with_conversions(draft: RecipeDraft, conversions: NpuConversions) -> RecipeDraft:
    return replace(draft, prepare=replace(draft.prepare, npu=None if conversions == NO_CONVERSIONS else conversions))


def _simulate(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if value or draft.prepare.npu is None:
        return draft
    return _with_conversions(draft, replace(draft.prepare.npu, **dict.fromkeys(_SIMULATED, False)))


def _limit(key: str, name: str) -> Apply:
    def apply(draft: RecipeDraft, value: bool) -> RecipeDraft:
        if draft.scale.npu is not None:
            return replace(draft, scale=replace(draft.scale, npu=replace(draft.scale.npu, **{name: value})))
        if not value:
            return draft
        if name in ALIGNED:
            return replace(draft, scale=replace(draft.scale, align=(*draft.scale.align, *ALIGNED[name])))
        return draft.with_note(f"{key} has no effect without enable_npu_cnn")

    return apply


def _rounds(draft: RecipeDraft, value: int) -> RecipeDraft:
    if draft.scale.npu is None:
        return draft.with_note("MaxLoopNum has no effect without enable_npu_cnn")
    return replace(draft, scale=replace(draft.scale, npu=NpuLimits(**{**vars(draft.scale.npu), "max_rounds": value})))


def _limits(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return draft if value else replace(draft, scale=replace(draft.scale, npu=None))


def _conversion_row(key: str, name: str, meaning: str, default: str = "True with enable_npu_cnn") -> OptionRow:
    return OptionRow(key, Kind.BOOL, default, meaning, f"prepare.npu.{name}", conversion(name))


def _limit_row(key: str, name: str, meaning: str) -> OptionRow:
    target_field = f"scale.npu.{name}" + (", else scale.align" if name in ALIGNED else "")
    return OptionRow(key, Kind.BOOL, "True with enable_npu_cnn", meaning, target_field, _limit(key, name))


def _unconverted(operator: str) -> OptionRow:
    return refuses(
        f"Convert{operator}ToDPUVersion",
        Kind.BOOL,
        f"Replace {operator} by what the NPU computes.",
        f"quantry has no conversion of {operator}; the operator is quantized as it is",
        harmless=False,
    )


NPU_ROWS = (
    _conversion_row("ConvertLeakyReluToDPUVersion", "leaky_relu", "Round the slope of LeakyRelu to 1/256."),
    _conversion_row("ConvertSigmoidToHardSigmoid", "sigmoid_to_hard_sigmoid", "Replace Sigmoid by HardSigmoid."),
    _conversion_row("ConvertHardSigmoidToDPUVersion", "hard_sigmoid", "HardSigmoid with the NPU's factor."),
    _conversion_row("ConvertAvgPoolToDPUVersion", "average_pool", "Average pools with the NPU's reciprocal."),
    _conversion_row("ConvertReduceMeanToDPUVersion", "reduce_mean", "ReduceMean with the NPU's reciprocal."),
    _conversion_row("ConvertClipToDPUVersion", "clip", "Round the bounds of Clip to integers.", "False"),
    _unconverted("Softmax"),
    _unconverted("InstanceNorm"),
    OptionRow(
        "SimulateDPU",
        Kind.BOOL,
        "True",
        "False switches all of the conversions above off, even those set to True.",
        "prepare.npu",
        _simulate,
    ),
    _limit_row("AdjustShiftCut", "shift_cut", "The accumulator is shifted right by 0 to 16 bits."),
    _limit_row("AdjustShiftBias", "shift_bias", "The accumulator's shifter reaches the bias."),
    _limit_row("AdjustShiftRead", "shift_read", "Operands of Add differ by at most 7 fraction bits."),
    _limit_row("AdjustShiftWrite", "shift_write", "The output shifter reaches the results of Add and Mul."),
    _limit_row("AdjustHardSigmoid", "hard_sigmoid", "HardSigmoid is within the range of its table."),
    _limit_row("AdjustShiftSwish", "swish", "x * HardSigmoid(x) is shifted right by 0 to 15 bits."),
    _limit_row("AlignConcat", "align_concat", "One scale for the inputs and the output of Concat."),
    _limit_row("AlignPool", "align_pool", "One scale for the input and the output of pools."),
    _limit_row("AlignPad", "align_pad", "One scale for the input and the output of Pad."),
    _limit_row("AlignSlice", "align_slice", "One scale for the input and the output of Slice."),
    same_result(
        "AlignTranspose",
        Kind.BOOL,
        "False",
        "One scale for the input and the output of Transpose.",
        "operators that only move data always share the scale of their input",
    ),
    same_result(
        "AlignReshape",
        Kind.BOOL,
        "False",
        "One scale for the input and the output of Reshape.",
        "operators that only move data always share the scale of their input",
    ),
    OptionRow(
        "MaxLoopNum", Kind.INT, "5", "Maximum number of passes over the limits.", "scale.npu.max_rounds", _rounds
    ),
    OptionRow(
        "NPULimitationCheck",
        Kind.BOOL,
        "True",
        "False switches all of the limits above off, even those set to True.",
        "scale.npu = None",
        _limits,
    ),
    refuses(
        "AdjustBiasScale",
        Kind.BOOL,
        "Give int32 biases the product of input scale and weight scale.",
        "int32 biases always have that scale; for separate scales use Int32Bias=False",
        harmless=True,
    ),
    same_result(
        "AdjustWeightScaleForInt32Bias",
        Kind.BOOL,
        "False",
        "Widen weight scales until the int32 bias does not overflow.",
        "weight scales are always widened exactly where an int32 bias would overflow",
    ),
    same_result(
        "AlignEltwiseQuantType",
        Kind.BOOL,
        "False",
        "One type for both operands of elementwise operators.",
        "an operator reads its activations in one type, unless a tensor has its own type",
    ),
)


_NO_FUSION = "patterns are not fused into operators; export the model with the operator itself"
_SHAPE = re.compile(r"\s*([^:;\[\]]+?)\s*:\s*\[([\d\s,]*)\]\s*")


def _skip(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value:
        return draft
    untouched = replace(draft.prepare, fold_constants=False, fold_batch_norm=False, remove_identities=False)
    return replace(draft, prepare=untouched)


def _simplify(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, prepare=replace(draft.prepare, fold_constants=value, remove_identities=value))


def _fix_shapes(draft: RecipeDraft, value: str) -> RecipeDraft:
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in filter(None, (entry.strip() for entry in value.split(";"))):
        match = _SHAPE.fullmatch(entry)
        if match is None:
            raise OptionError(
                "extra_options['FixShapes'] must have the form 'input:[1,3,224,224];mask:[1,16]', "
                f"got {entry!r} in {value!r}"
            )
        shapes[match[1]] = tuple(int(length) for length in match[2].split(",") if length.strip())
    return replace(draft, fixed_shapes=shapes)


def _clip6(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if draft.equalize.cross_layer is None:
        return draft.with_note("ReplaceClip6Relu has no effect without include_cle")
    return with_field(draft, "equalize.cross_layer.clip6_to_relu", value)


def _spelling(key: str, field: str, kind: Kind = Kind.BOOL, default: str = "False") -> OptionRow:
    return OptionRow(key, kind, default, f"QConfig's name for the field {field}.", spelling_of=field)


def _no_fusion(operator: str) -> OptionRow:
    return refuses(
        f"Fuse{operator}",
        Kind.BOOL,
        f"Fuse a pattern of simpler operators into {operator}.",
        _NO_FUSION,
        harmless=False,
    )


def _conversion(key: str, field: str, meaning: str) -> OptionRow:
    default = "True with enable_npu_cnn, enable_npu_transformer or an extended format, else False"
    return OptionRow(key, Kind.BOOL, default, meaning, f"prepare.npu.{field}", conversion(field))


ROWS = (
    OptionRow(
        "SkipPreprocess",
        Kind.BOOL,
        "False",
        "Do not clean up the float graph; only the opset, names and shapes are adjusted.",
        "prepare: fold_constants, fold_batch_norm and remove_identities off",
        _skip,
    ),
    OptionRow(
        "SimplifyModel",
        Kind.BOOL,
        "True",
        "Fold constants and remove operators without effect.",
        "prepare.fold_constants, prepare.remove_identities",
        _simplify,
    ),
    refuses(
        "SimplifyModelOptions", Kind.DICT, "Options of onnxslim.", "onnxslim is not used; leave it out", harmless={}
    ),
    refuses(
        "RemoveInputInit",
        Kind.BOOL,
        "Remove initializers from the graph's inputs.",
        "initializers are always removed from the inputs, because they would not be constant otherwise",
        harmless=True,
    ),
    sets_field("ConvertOpsetVersion", Kind.INT, "None", "Convert the model to at least this opset.", "prepare.opset"),
    OptionRow(
        "FixShapes",
        Kind.TEXT,
        "''",
        "Fix the shapes of inputs: 'input:[1,3,224,224];mask:[1,16]'.",
        "the model's inputs, before quantization",
        _fix_shapes,
    ),
    refuses(
        "FillAllValueInfo",
        Kind.BOOL,
        "Write the shape of every tensor into the result.",
        "inferred shapes are not written; run onnx.shape_inference on the result",
        harmless=False,
    ),
    same_result(
        "CopySharedInit",
        Kind.LIST,
        "None",
        "Give each reader of a shared constant its own copy.",
        "weights and biases with several readers are always copied if their scales may differ",
    ),
    same_result(
        "CopyBiasInit",
        Kind.LIST,
        "['Conv', 'ConvTranspose', 'Gemm']",
        "Give each reader of a shared bias its own copy.",
        "weights and biases with several readers are always copied if their scales may differ",
    ),
    sets_field(
        "FoldBatchNorm",
        Kind.BOOL,
        "as optimize_model",
        "Fold BatchNormalization into the layer before it.",
        "prepare.fold_batch_norm",
    ),
    *(_no_fusion(operator) for operator in ("InstanceNorm", "L2Norm", "LayerNorm", "Gelu")),
    _conversion(
        "ConvertBNToConv", "batch_norm_to_conv", "Write BatchNormalization that cannot be folded as a depthwise Conv."
    ),
    _conversion(
        "ConvertReduceMeanToGlobalAvgPool",
        "reduce_mean_to_pool",
        "Write ReduceMean over height and width as GlobalAveragePool.",
    ),
    _conversion(
        "SplitLargeKernelPool",
        "split_large_pool",
        "Write GlobalAveragePool over more than 512 values as AveragePool and GlobalAveragePool.",
    ),
    _conversion("ConvertSplitToSlice", "split_to_slice", "Write Split as one Slice per output."),
    refuses(
        "ConvertClipToRelu",
        Kind.BOOL,
        "Replace Clip by Relu if its upper bound was never reached.",
        "Clip is kept, because its bound may be reached later; ReplaceClip6Relu=True with include_cle=True replaces "
        "Clip(0, 6)",
        harmless=False,
    ),
    OptionRow(
        "ReplaceClip6Relu",
        Kind.BOOL,
        "False",
        "Replace Clip(0, 6) by Relu before cross-layer equalization.",
        "equalize.cross_layer.clip6_to_relu",
        _clip6,
    ),
    same_result(
        "FoldRelu",
        Kind.BOOL,
        "False",
        "Remove a Relu whose quantized output already clips.",
        "such a Relu has no effect on the result, and runtimes fold it themselves",
    ),
    refuses(
        "ShapeShifterYaml",
        Kind.TEXT,
        "A list of graph rewrites.",
        "rewrite the model with onnx_ir or onnxscript before you quantize it",
        harmless=None,
    ),
    refuses(
        "PreprocessYAML",
        Kind.TEXT,
        "A list of graph rewrites.",
        "rewrite the model with onnx_ir or onnxscript before you quantize it",
        harmless=None,
    ),
    _spelling("ConvertFP16ToFP32", "convert_fp16_to_fp32"),
    _spelling("ConvertNCHWToNHWC", "convert_nchw_to_nhwc"),
    _spelling("OptimizeModel", "optimize_model", default="True"),
    _spelling("EnableNPUCnn", "enable_npu_cnn"),
    _spelling("ExecutionProviders", "execution_providers", Kind.LIST, "['CPUExecutionProvider']"),
    _spelling("DebugMode", "debug_mode"),
    _spelling("CryptoMode", "crypto_mode"),
    _spelling("PrintSummary", "print_summary", default="True"),
    _spelling("IgnoreWarnings", "ignore_warnings", default="True"),
)
