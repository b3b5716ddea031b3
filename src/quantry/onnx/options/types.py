"""Options of data types, symmetry, biases, single tensors, block formats and weight-only quantization."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantry.errors import OptionError, nearest_spelling, require_choice, require_known
from quantry.facts.operators import MATRIX_PRODUCTS
from quantry.onnx.enums import TYPES, own_member, spec_of
from quantry.onnx.options.option_row import Kind, OptionRow, nested, refuses, sets, sets_field
from quantry.onnx.options.recipe_draft import RecipeDraft, own_bias_spec, with_field
from quantry.recipe import (
    DataType,
    DerivedBias,
    FloatBias,
    FloatScale,
    GivenRange,
    Gptq,
    MatMulNBits,
    MinMSE,
    OwnBias,
    PerBlock,
    PerChannel,
    PerGroup,
    PowerOfTwoScale,
    TensorSpec,
    TensorTypes,
)

_TYPED = ("quant_type", "symmetric", "axis")
_RANGES = ("scale", "zero_point", "rmin", "rmax", "reduce_range")
_KNOWN = (*_TYPED, *_RANGES, "convert")
_CONVERT = ("quant_type", "symmetric", *_RANGES, "recv_nodes")


def _mixed(draft: RecipeDraft, value: Mapping[Any, Iterable[str]]) -> RecipeDraft:
    if not draft.tensor_types:
        return draft.with_note("MixedPrecisionTensor has no effect without specific_tensor_precision")
    option = "extra_options['MixedPrecisionTensor']"
    for kind, names in value.items():
        if isinstance(names, str):
            raise OptionError(f"{option} must hold lists of names, got {names!r} of type str for {kind}")
        spec = spec_of(own_member(kind, TYPES, option), option)
        draft = _with(draft, tuple(names), _symmetric(spec, draft))
    return draft


def _overrides(draft: RecipeDraft, value: Mapping[str, Any]) -> RecipeDraft:
    for name, entries in value.items():
        option = f"extra_options['TensorQuantOverrides'][{name!r}]"
        listed = [entries] if isinstance(entries, Mapping) else list(entries)
        if not listed or not all(isinstance(entry, Mapping) for entry in listed):
            raise OptionError(f"{option} must be a list of dicts, got {entries!r}")
        if len(listed) > 1 and "axis" not in listed[0]:
            raise OptionError(
                f"{option} must have an 'axis' in its first dict if there is one for each channel, got none"
            )
        for entry in listed:
            _check_override(entry, option, _KNOWN)
        if "convert" in listed[0]:
            draft = _with_conversion(draft, name, listed[0], option)
        elif any(key in listed[0] for key in _TYPED):
            draft = _with(draft, (name,), _overridden(draft, listed[0], option))
        draft = _with_ranges(draft, name, listed)
    return draft


def _with_conversion(draft: RecipeDraft, name: str, entry: Mapping[str, Any], option: str) -> RecipeDraft:
    """Convert a tensor to a second type for some of its readers, or for all of them."""
    conversion, option = entry["convert"], f"{option}['convert']"
    if not isinstance(conversion, Mapping) or "quant_type" not in conversion:
        raise OptionError(f"{option} must be a dict with 'quant_type', got {conversion!r}")
    if "axis" in entry:
        raise OptionError(f"{option} must be for a tensor with one scale, got 'axis' as well")
    _check_override(conversion, option, _CONVERT)
    converted = _overridden(draft, conversion, option)
    readers = tuple(sorted(conversion.get("recv_nodes") or ()))
    entries = TensorTypes((name,), _overridden(draft, entry, option), converted, readers)
    draft = replace(draft, plan=replace(draft.plan, tensors=(*draft.plan.tensors, entries)))
    # The plan gives a conversion the name of the tensor and the type.
    return _with_ranges(draft, f"{name}_{converted.dtype.value}", [conversion])


def _check_override(entry: Mapping[str, Any], option: str, keys: tuple[str, ...]) -> None:
    require_known(option, entry, keys)
    if ("scale" in entry) != ("zero_point" in entry):
        raise OptionError(
            f"Must provide both 'scale' and 'zero_point': {option} must have 'scale' and 'zero_point' together, got "
            "only one of them"
        )
    invalid = [key for key in ("symmetric", "reduce_range", "rmax", "rmin") if key in entry]
    if "scale" in entry and invalid:
        listed = ", ".join(invalid)
        raise OptionError(
            f"option(s) [{listed}] are invalid with 'scale' and 'zero_point': {option} must not have {listed} together "
            "with a scale, which says everything, got both"
        )


def _with_ranges(draft: RecipeDraft, name: str, entries: list[Mapping[str, Any]]) -> RecipeDraft:
    if not any(key in entry for entry in entries for key in _RANGES):
        return draft
    numbers: dict[str, Any] = {
        field: tuple(_number(entry.get(key)) for entry in entries)
        for field, key in (("lowest", "rmin"), ("highest", "rmax"), ("scale", "scale"), ("zero_point", "zero_point"))
        if any(key in entry for entry in entries)
    }
    if "zero_point" in numbers:
        numbers["zero_point"] = tuple(int(value) for value in numbers["zero_point"])
    tensor_range = GivenRange(name, reduced=any(bool(entry.get("reduce_range")) for entry in entries), **numbers)
    return replace(draft, scale=replace(draft.scale, given=(*draft.scale.given, tensor_range)))


def _number(value: Any) -> float:
    """Return a number, also from an array with one; NaN if there is none."""
    return float("nan") if value is None else float(np.asarray(value).reshape(-1)[0])


def _overridden(draft: RecipeDraft, entry: Mapping[str, Any], option: str) -> TensorSpec:
    # Only weights have channels with their own scales, so an axis means a weight.
    spec = draft.plan.weight if "axis" in entry else draft.plan.activation
    if "quant_type" in entry:
        typed = spec_of(own_member(entry["quant_type"], TYPES, f"{option}['quant_type']"), option)
        spec = replace(_symmetric(typed, draft), scale=spec.scale if typed.dtype.is_integer else typed.scale)
    if "axis" in entry:
        # onnxruntime's scales per channel are symmetric unless the entry says otherwise.
        spec = replace(spec, symmetric=True, granularity=PerChannel(entry["axis"]))
    return replace(spec, symmetric=bool(entry["symmetric"])) if "symmetric" in entry else spec


def _symmetric(spec: TensorSpec, draft: RecipeDraft) -> TensorSpec:
    return replace(spec, symmetric=draft.plan.activation.symmetric or not spec.dtype.is_integer)


def _with(draft: RecipeDraft, names: tuple[str, ...], spec: TensorSpec) -> RecipeDraft:
    return replace(draft, plan=replace(draft.plan, tensors=(*draft.plan.tensors, TensorTypes(names, spec))))


def _blocks(draft: RecipeDraft, value: int) -> RecipeDraft:
    if not value:
        return draft
    note = "BlockSize leaves activations float: an integer product has one scale for all values it adds up"
    plan = replace(draft.plan, weight=replace(draft.plan.weight, granularity=PerGroup(value)), weights_only=True)
    return replace(draft, plan=plan, bias=FloatBias()).with_note(note)


def _unsigned_relu(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if value and not draft.plan.activation.symmetric:
        return draft.with_note("UseUnsignedReLU has no effect without ActivationSymmetric")
    return with_field(draft, "scale.zero_point_at_an_end", value) if value else draft


_TENSOR_TYPES = (
    OptionRow(
        "BlockSize",
        Kind.INT,
        "0",
        "Number of weights along the reduced axis that share a scale, 0 for none; activations stay float.",
        "plan.weight.granularity, plan.weights_only",
        _blocks,
    ),
    OptionRow(
        "TensorQuantOverrides",
        Kind.DICT,
        "{}",
        "Types and ranges of single tensors, by name: [{'quant_type', 'symmetric', 'axis', 'rmin', 'rmax', "
        "'reduce_range'}] or [{'quant_type', 'axis', 'scale', 'zero_point'}]; with 'axis', for weights, one dict for "
        "all channels or one for each. 'convert': {'quant_type', 'recv_nodes', ...} converts an activation to a second "
        "type for these nodes, or for all.",
        "plan.tensors, scale.given",
        _overrides,
    ),
    OptionRow(
        "MixedPrecisionTensor",
        Kind.DICT,
        "{}",
        "Names of tensors by type, with specific_tensor_precision=True; symmetry is that of activations.",
        "plan.tensors",
        _mixed,
    ),
)


_BFP = {("to_bfp", 16): DataType.BFP16}
_BFP |= {("to_bfp_prime", bits): dtype for bits, dtype in ((11, DataType.MX4), (13, DataType.MX6), (16, DataType.MX9))}
_MX = {
    "fp8_e5m2": DataType.MXFP8E5M2,
    "fp8_e4m3": DataType.MXFP8E4M3,
    "fp6_e3m2": DataType.MXFP6E3M2,
    "fp6_e2m3": DataType.MXFP6E2M3,
    "fp4_e2m1": DataType.MXFP4E2M1,
    "int8": DataType.MXINT8,
}
_BFP_TYPES = tuple(_BFP.values())
_MX_TYPES = tuple(_MX.values())
_BFP_FIXED = {"rounding_mode": 2, "sub_block_size": 2, "sub_block_shift_bits": 1, "convert_to_bfloat_before_bfp": 0}
_MX_FIXED = {"rounding_mode": 2}


def bfp_attributes(draft: RecipeDraft, value: Mapping[str, Any]) -> RecipeDraft:
    """Apply ``BFPAttributes`` to the tensors of a block floating-point type."""
    _check(value, "BFPAttributes", ("bfp_method", "bit_width", "axis", "block_size"), _BFP_FIXED)
    choice = (value.get("bfp_method", "to_bfp"), value.get("bit_width", 16))
    if choice not in _BFP:
        raise OptionError(
            "extra_options['BFPAttributes'] must have bfp_method 'to_bfp' with bit_width 16, or 'to_bfp_prime' with "
            f"bit_width 11, 13 or 16; got {choice[0]!r} with {choice[1]!r}"
        )
    return _with_blocks(draft, _BFP_TYPES, _BFP[choice], value, "BFPAttributes")


def mx_attributes(draft: RecipeDraft, value: Mapping[str, Any]) -> RecipeDraft:
    """Apply ``MXAttributes`` to the tensors of a microscaling type."""
    _check(value, "MXAttributes", ("element_dtype", "axis", "block_size"), _MX_FIXED)
    element = value.get("element_dtype", "int8")
    require_choice("extra_options['MXAttributes']['element_dtype']", element, _MX)
    return _with_blocks(draft, _MX_TYPES, _MX[element], value, "MXAttributes")


def block_attributes(dtype: DataType) -> dict[str, dict[str, Any]]:
    """Return the option that names a block format, ``BFPAttributes`` or ``MXAttributes``; none for other types."""
    shape = {"axis": 1, "block_size": dtype.block_size, "rounding_mode": 2} if dtype.is_block else {}
    for (method, bits), data_type in _BFP.items():
        if data_type == dtype:
            pairs = {} if method == "to_bfp" else {"sub_block_size": 2, "sub_block_shift_bits": 1}
            return {"BFPAttributes": {"bfp_method": method, "bit_width": bits, **shape, **pairs}}
    for element, data_type in _MX.items():
        if data_type == dtype:
            return {"MXAttributes": {"element_dtype": element, **shape}}
    return {}


def _check(value: Mapping[str, Any], key: str, supported: tuple[str, ...], fixed: Mapping[str, int]) -> None:
    names = (*supported, *fixed)
    require_known(f"extra_options[{key!r}]", value, names, f"hold known keys ({', '.join(names)})")
    for name, setting in value.items():
        if name in fixed and setting != fixed[name]:
            raise OptionError(
                f"extra_options[{key!r}][{name!r}] must be {fixed[name]}, the only supported value, got {setting!r}"
            )


def _with_blocks(
    draft: RecipeDraft, family: tuple[DataType, ...], dtype: DataType, value: Mapping[str, Any], key: str
) -> RecipeDraft:
    blocks = PerBlock(size=value.get("block_size"), axis=value.get("axis", 1))
    if blocks.size == dtype.block_size:
        blocks = replace(blocks, size=None)  # The format's own size, so that equal recipes are equal.
    spec = TensorSpec(dtype, granularity=blocks)
    plan = draft.plan
    if plan.activation.dtype not in family and plan.weight.dtype not in family:
        return draft.with_note(f"{key} has no effect without a type of {'QBFP' if family is _BFP_TYPES else 'QMX'}")
    if plan.activation.dtype in family:
        plan = replace(plan, activation=spec)
    if plan.weight.dtype in family:
        plan = replace(plan, weight=spec)
    return replace(draft, plan=plan)


_WIDTHS = {4: DataType.INT4, 8: DataType.INT8}
_ALGORITHMS = ("DEFAULT", "GPTQ")


def _n_bits(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value:
        return draft
    selection = replace(draft.plan.selection, operators=draft.plan.selection.operators or MATRIX_PRODUCTS)
    weight = TensorSpec(DataType.INT4, granularity=PerGroup())
    plan = replace(draft.plan, weight=weight, weights_only=True, selection=selection)
    scale = replace(draft.scale, weight=MinMSE(either_sign=True))
    return replace(draft, plan=plan, scale=scale, bias=FloatBias(), format=MatMulNBits())


def _bits(draft: RecipeDraft, value: int) -> RecipeDraft:
    if value not in _WIDTHS:
        raise OptionError(f"extra_options['MatMulNBitsParams']['Bits'] must be 4 or 8, got {value!r}")
    return with_field(draft, "plan.weight.dtype", _WIDTHS[value])


def _group(draft: RecipeDraft, value: int) -> RecipeDraft:
    return with_field(draft, "plan.weight.granularity", PerGroup(value))


def _algorithm(draft: RecipeDraft, value: str) -> RecipeDraft:
    if value.upper() not in _ALGORITHMS:
        raise OptionError(
            f"extra_options['MatMulNBitsParams']['Algorithm'] must be 'DEFAULT' or 'GPTQ', got {value!r}"
            f"{nearest_spelling(value, _ALGORITHMS)}; GPTQ is the nearest to HQQ"
        )
    return replace(draft, gptq=Gptq()) if value.upper() == "GPTQ" else draft


N_BITS_ROWS = (
    OptionRow(
        "Algorithm",
        Kind.TEXT,
        "'DEFAULT'",
        "'DEFAULT' rounds to nearest, with 'GPTQ' later columns compensate the error of earlier ones.",
        "tune.steps = (Gptq(),)",
        _algorithm,
    ),
    OptionRow(
        "GroupSize",
        Kind.INT,
        "128",
        "Values that share a scale: 16, 32, 64, 128 or 256.",
        "plan.weight.granularity = PerGroup(size)",
        _group,
    ),
    sets_field("Symmetric", Kind.BOOL, "True", "Fix zero points at the centre of the type.", "plan.weight.symmetric"),
    OptionRow("Bits", Kind.INT, "4", "Bits of weights: 4 or 8.", "plan.weight.dtype", _bits),
    OptionRow(
        "AccuracyLevel",
        Kind.INT,
        "0",
        "Precision of the kernel: 0 that of the input, 1 float32, 2 float16, 3 bfloat16, 4 int8.",
        "emit.format = MatMulNBits(accuracy_level)",
        sets("format.accuracy_level"),
    ),
)
"""Every key of ``MatMulNBitsParams``."""

_WEIGHTS_ONLY = (
    sets_field(
        "WeightsOnly", Kind.BOOL, "False", "Quantize only weights; activations stay float.", "plan.weights_only"
    ),
    OptionRow(
        "UseMatMulNBits",
        Kind.BOOL,
        "False",
        "Write Gemm and MatMul with 4- or 8-bit weights as com.microsoft MatMulNBits; the rest stays float.",
        "emit.format = MatMulNBits(), plan.weights_only, plan.weight, scale.weight",
        _n_bits,
    ),
    OptionRow(
        "MatMulNBitsParams",
        Kind.DICT,
        "{}",
        "Settings of MatMulNBits; see the table below.",
        "plan.weight, emit.format",
        nested("MatMulNBitsParams", N_BITS_ROWS, "UseMatMulNBits", lambda draft: isinstance(draft.format, MatMulNBits)),
    ),
)


def _quantize_bias(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return draft if value else replace(draft, bias=FloatBias())


def _int32_bias(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if draft.bias is not None:
        return draft.with_note("Int32Bias has no effect with QuantizeBias=False")
    return replace(draft, bias=DerivedBias() if value else OwnBias(own_bias_spec(draft.plan.weight)))


def _int16_bias(draft: RecipeDraft, value: bool) -> RecipeDraft:
    return replace(draft, bias=OwnBias(TensorSpec(DataType.INT16, scale=draft.plan.weight.scale))) if value else draft


def _power_of_two(draft: RecipeDraft, value: bool) -> RecipeDraft:
    for path in ("plan.activation.scale", "plan.weight.scale"):
        draft = with_field(draft, path, PowerOfTwoScale() if value else FloatScale())
    return draft


ROWS = (
    # Before the biases, whose scales are of the same kind.
    OptionRow(
        "UsePowerOf2Scale",
        Kind.BOOL,
        "True with a PowerOfTwoMethod, else False",
        "Power-of-two scales with any calibration method.",
        "plan.activation.scale, plan.weight.scale",
        _power_of_two,
    ),
    sets_field(
        "ActivationSymmetric",
        Kind.BOOL,
        "False; True with enable_npu_cnn or FixNeuron, and for types without zero point",
        "Fix the zero point of activations at the centre of the type.",
        "plan.activation.symmetric",
    ),
    sets_field(
        "WeightSymmetric",
        Kind.BOOL,
        "True for signed weights, else False",
        "Fix the zero point of weights at the centre of the type.",
        "plan.weight.symmetric",
    ),
    sets_field(
        "WeightsSymmetric",
        Kind.BOOL,
        "as WeightSymmetric",
        "Another spelling of WeightSymmetric in AMD's documentation.",
        "plan.weight.symmetric",
    ),
    OptionRow(
        "UseUnsignedReLU",
        Kind.BOOL,
        "False",
        "Use the whole range of the type for symmetric activations that are never negative.",
        "scale.zero_point_at_an_end",
        _unsigned_relu,
    ),
    OptionRow(
        "QuantizeBias",
        Kind.BOOL,
        "True",
        "False leaves biases float.",
        "plan.bias = FloatBias()",
        _quantize_bias,
    ),
    OptionRow(
        "Int32Bias",
        Kind.BOOL,
        "True; False with enable_npu_cnn, FixNeuron and for types without scale",
        "True: int32 biases with the product of input scale and weight scale. False: biases of the weight's width with "
        "their own scale.",
        "plan.bias = DerivedBias() or OwnBias(...)",
        _int32_bias,
    ),
    OptionRow(
        "Int16Bias",
        Kind.BOOL,
        "False",
        "int16 biases with their own scale.",
        "plan.bias = OwnBias(TensorSpec(DataType.INT16))",
        _int16_bias,
    ),
    refuses(
        "ActivationScaled",
        Kind.BOOL,
        "Scale 16-bit float activations into +-2 first.",
        "float16 and bfloat16 are written without a scale; leave it out",
        harmless=False,
    ),
    refuses(
        "WeightScaled",
        Kind.BOOL,
        "Scale 16-bit float weights into +-2 first.",
        "float16 and bfloat16 are written without a scale; leave it out",
        harmless=False,
    ),
    OptionRow(
        "QuantizeFP16",
        Kind.BOOL,
        "False",
        "Quantize a float16 model; its inputs and outputs stay float16. No effect on float32 models.",
        "prepare.float16_to_float32",
        sets("quantize_fp16"),
    ),
    OptionRow(
        "UseFP32Scale",
        Kind.BOOL,
        "True",
        "With QuantizeFP16: True computes in float32 inside the model; False in float16, with float16 scales, in "
        "standard Q/DQ pairs and MatMulNBits.",
        "prepare.float16_to_float32",
        sets("fp32_scale"),
    ),
    *_WEIGHTS_ONLY,
    *_TENSOR_TYPES,
    refuses(
        "Int16Scale",
        Kind.BOOL,
        "Scales M / 2**N with a 16-bit M.",
        "scales are float32 or powers of two; use a CalibrationMethod or a PowerOfTwoMethod",
        harmless=False,
    ),
)
