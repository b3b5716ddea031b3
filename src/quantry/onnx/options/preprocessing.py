"""Options of the clean-up of the float graph, and conversions."""

import re
from dataclasses import replace

from quantry.errors import RecipeError
from quantry.onnx.options.draft import Draft, with_field
from quantry.onnx.options.npu import conversion
from quantry.onnx.options.option_row import Kind, OptionRow, sets

_NO_FUSION = "operators written out as patterns stay as they are; export the model with the operator itself"
_SHAPE = re.compile(r"\s*([^:;\[\]]+?)\s*:\s*\[([\d\s,]*)\]\s*")


def _skip(draft: Draft, value: bool) -> Draft:
    if not value:
        return draft
    bare = replace(draft.prepare, fold_constants=False, fold_batch_norm=False, remove_identities=False)
    return replace(draft, prepare=bare)


def _simplify(draft: Draft, value: bool) -> Draft:
    return replace(draft, prepare=replace(draft.prepare, fold_constants=value, remove_identities=value))


def _fix_shapes(draft: Draft, value: str) -> Draft:
    shapes: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (part.strip() for part in value.split(";"))):
        match = _SHAPE.fullmatch(part)
        if match is None:
            raise RecipeError(
                "extra_options['FixShapes'] must read like 'input:[1,3,224,224];mask:[1,16]', "
                f"got {part!r} in {value!r}"
            )
        shapes[match[1]] = tuple(int(length) for length in match[2].split(",") if length.strip())
    return replace(draft, fixed_shapes=shapes)


def _clip6(draft: Draft, value: bool) -> Draft:
    if draft.equalize.cross_layer is None:
        return draft.noted("ReplaceClip6Relu has no effect without include_cle")
    changed: Draft = with_field(draft, "equalize.cross_layer.clip6_to_relu", value)
    return changed


def _spelling(key: str, field: str, kind: Kind = Kind.BOOL, default: str = "False") -> OptionRow:
    return OptionRow(key, kind, default, f"QConfig's spelling of the field {field}.", spelling_of=field)


def _no_fusion(operator: str) -> OptionRow:
    return OptionRow(
        f"Fuse{operator}",
        Kind.BOOL,
        "False",
        f"Find {operator} written out in simpler operators.",
        refused=_NO_FUSION,
        harmless=(False,),
    )


def _conversion(key: str, field: str, meaning: str) -> OptionRow:
    default = "True with enable_npu_cnn, enable_npu_transformer or an extended format, else False"
    return OptionRow(key, Kind.BOOL, default, meaning, f"prepare.npu.{field}", conversion(field))


def _refused(key: str, kind: Kind, meaning: str, instead: str, *, harmless: object) -> OptionRow:
    return OptionRow(key, kind, repr(harmless), meaning, refused=instead, harmless=(harmless,))


ROWS = (
    OptionRow(
        "SkipPreprocess",
        Kind.BOOL,
        "False",
        "Leave the float graph as it is: only opset, names and shapes are seen to.",
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
    _refused(
        "SimplifyModelOptions", Kind.DICT, "Options of onnxslim.", "no such tool is used; leave it out", harmless={}
    ),
    _refused(
        "RemoveInputInit",
        Kind.BOOL,
        "Remove initializers from the graph's inputs.",
        "initializers among the inputs are always removed, because they would not be constants",
        harmless=True,
    ),
    OptionRow(
        "ConvertOpsetVersion",
        Kind.INT,
        "None",
        "Raise the model to at least this opset.",
        "prepare.opset",
        sets("prepare.opset"),
    ),
    OptionRow(
        "FixShapes",
        Kind.TEXT,
        "''",
        "Give inputs fixed shapes: 'input:[1,3,224,224];mask:[1,16]'.",
        "the model's inputs before it is quantized",
        _fix_shapes,
    ),
    _refused(
        "FillAllValueInfo",
        Kind.BOOL,
        "Write the shape of every tensor into the result.",
        "shapes that follow from others are not written; run onnx.shape_inference on the result",
        harmless=False,
    ),
    OptionRow(
        "CopySharedInit",
        Kind.LIST,
        "None",
        "Give each reader of a shared constant a copy of its own.",
        satisfied="weights and biases with several readers are always copied where their scales may differ",
    ),
    OptionRow(
        "CopyBiasInit",
        Kind.LIST,
        "['Conv', 'ConvTranspose', 'Gemm']",
        "Give each reader of a shared bias a copy of its own.",
        satisfied="weights and biases with several readers are always copied where their scales may differ",
    ),
    OptionRow(
        "FoldBatchNorm",
        Kind.BOOL,
        "as optimize_model",
        "Fold BatchNormalization into the layer before it.",
        "prepare.fold_batch_norm",
        sets("prepare.fold_batch_norm"),
    ),
    *(_no_fusion(operator) for operator in ("InstanceNorm", "L2Norm", "LayerNorm", "Gelu")),
    _conversion("ConvertBNToConv", "batch_norm_to_conv", "Write BatchNormalization left over as a depthwise Conv."),
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
    _conversion("ConvertSplitToSlice", "split_to_slice", "Write Split as one Slice for each output."),
    _refused(
        "ConvertClipToRelu",
        Kind.BOOL,
        "Replace Clip by Relu where its upper bound was never reached.",
        "Clip is kept, as its bound may be reached later; ReplaceClip6Relu=True with include_cle=True replaces "
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
    OptionRow(
        "FoldRelu",
        Kind.BOOL,
        "False",
        "Remove a Relu whose quantized output clips already.",
        satisfied="such a Relu changes nothing, so the model computes the same; runtimes fold it themselves",
    ),
    _refused(
        "ShapeShifterYaml",
        Kind.TEXT,
        "A list of graph rewrites.",
        "rewrite the model before quantizing it, with onnx_ir or onnxscript",
        harmless=None,
    ),
    _refused(
        "PreprocessYAML",
        Kind.TEXT,
        "A list of graph rewrites.",
        "rewrite the model before quantizing it, with onnx_ir or onnxscript",
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
