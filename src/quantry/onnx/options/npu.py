"""Options of integer NPUs: conversions and limits."""

from dataclasses import fields, replace

from quantry.onnx.options.draft import Draft
from quantry.onnx.options.option_row import Apply, Kind, OptionRow
from quantry.recipe import NpuConversions, NpuLimits

_SIMULATED = ("leaky_relu", "sigmoid_to_hard_sigmoid", "hard_sigmoid", "average_pool", "reduce_mean", "clip")
NO_CONVERSIONS = NpuConversions(**{part.name: False for part in fields(NpuConversions)})
"""Every switch off."""

WRITTEN_DIFFERENTLY = NpuConversions(**dict.fromkeys(_SIMULATED, False))
"""Only the conversions that keep the function, as extended formats have them."""


def conversion(name: str) -> Apply:
    """Return what switches one conversion on or off, whether or not the NPU's others are on."""

    def apply(draft: Draft, value: bool) -> Draft:
        changed = replace(draft.prepare.npu or NO_CONVERSIONS, **{name: value})
        return _with_conversions(draft, changed)

    return apply


def _with_conversions(draft: Draft, changed: NpuConversions) -> Draft:
    return replace(draft, prepare=replace(draft.prepare, npu=None if changed == NO_CONVERSIONS else changed))


def _simulate(draft: Draft, value: bool) -> Draft:
    if value or draft.prepare.npu is None:
        return draft
    return _with_conversions(draft, replace(draft.prepare.npu, **dict.fromkeys(_SIMULATED, False)))


_ALIGNED = {
    "align_concat": ("Concat",),
    "align_pool": ("MaxPool", "AveragePool", "GlobalAveragePool"),
    "align_pad": ("Pad",),
    "align_slice": ("Slice",),
}


def _limit(key: str, name: str) -> Apply:
    def apply(draft: Draft, value: bool) -> Draft:
        if draft.scale.npu is not None:
            return replace(draft, scale=replace(draft.scale, npu=replace(draft.scale.npu, **{name: value})))
        if not value:
            return draft
        if name in _ALIGNED:
            return replace(draft, scale=replace(draft.scale, align=(*draft.scale.align, *_ALIGNED[name])))
        return draft.noted(f"{key} has no effect without enable_npu_cnn")

    return apply


def _rounds(draft: Draft, value: int) -> Draft:
    if draft.scale.npu is None:
        return draft.noted("MaxLoopNum has no effect without enable_npu_cnn")
    return replace(draft, scale=replace(draft.scale, npu=NpuLimits(**{**vars(draft.scale.npu), "max_rounds": value})))


def _limits(draft: Draft, value: bool) -> Draft:
    return draft if value else replace(draft, scale=replace(draft.scale, npu=None))


def _conversion_row(key: str, name: str, meaning: str, default: str = "True with enable_npu_cnn") -> OptionRow:
    return OptionRow(key, Kind.BOOL, default, meaning, f"prepare.npu.{name}", conversion(name))


def _limit_row(key: str, name: str, meaning: str) -> OptionRow:
    place = f"scale.npu.{name}" + (", else scale.align" if name in _ALIGNED else "")
    return OptionRow(key, Kind.BOOL, "True with enable_npu_cnn", meaning, place, _limit(key, name))


def _unconverted(operator: str) -> OptionRow:
    return OptionRow(
        f"Convert{operator}ToDPUVersion",
        Kind.BOOL,
        "False",
        f"Replace {operator} by what the NPU computes.",
        refused=f"there is no conversion of {operator}; it is quantized as the operator it is",
        harmless=(False,),
    )


ROWS = (
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
        "False switches all of the conversions above off, whatever they say themselves.",
        "prepare.npu",
        _simulate,
    ),
    _limit_row("AdjustShiftCut", "shift_cut", "The accumulator is cut by 0 to 16 bits."),
    _limit_row("AdjustShiftBias", "shift_bias", "The bias is within reach of the accumulator."),
    _limit_row("AdjustShiftRead", "shift_read", "Operands of Add are at most 7 positions apart."),
    _limit_row("AdjustShiftWrite", "shift_write", "Results of Add and Mul are within reach of the shifter."),
    _limit_row("AdjustHardSigmoid", "hard_sigmoid", "HardSigmoid is within the positions of its table."),
    _limit_row("AdjustShiftSwish", "swish", "x * HardSigmoid(x) is cut by 0 to 15 bits."),
    _limit_row("AlignConcat", "align_concat", "One scale for the inputs and the output of Concat."),
    _limit_row("AlignPool", "align_pool", "One scale for the input and the output of pools."),
    _limit_row("AlignPad", "align_pad", "One scale for the input and the output of Pad."),
    _limit_row("AlignSlice", "align_slice", "One scale for the input and the output of Slice."),
    OptionRow(
        "AlignTranspose",
        Kind.BOOL,
        "False",
        "One scale for the input and the output of Transpose.",
        satisfied="operators that only move data always share the scale of their input",
    ),
    OptionRow(
        "AlignReshape",
        Kind.BOOL,
        "False",
        "One scale for the input and the output of Reshape.",
        satisfied="operators that only move data always share the scale of their input",
    ),
    OptionRow("MaxLoopNum", Kind.INT, "5", "How often the limits are gone through.", "scale.npu.max_rounds", _rounds),
    OptionRow(
        "NPULimitationCheck",
        Kind.BOOL,
        "True",
        "False switches all of the limits above off, whatever they say themselves.",
        "scale.npu = None",
        _limits,
    ),
    OptionRow(
        "AdjustBiasScale",
        Kind.BOOL,
        "True",
        "Put int32 biases on the product of the input's and the weight's scale.",
        refused="int32 biases lie on that product from the start; for scales of their own use Int32Bias=False",
        harmless=(True,),
    ),
    OptionRow(
        "AdjustWeightScaleForInt32Bias",
        Kind.BOOL,
        "False",
        "Widen weight scales until the int32 bias does not overflow.",
        satisfied="weight scales are always widened where an int32 bias would overflow, and only there",
    ),
    OptionRow(
        "AlignEltwiseQuantType",
        Kind.BOOL,
        "False",
        "One type for both operands of elementwise operators.",
        satisfied="an operator reads its activations in one type, unless a tensor was given another by name",
    ),
)
