"""Options that leave activations float: ``WeightsOnly``, ``UseMatMulNBits`` and the dict ``MatMulNBitsParams``."""

from dataclasses import replace

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.options.draft import Draft, with_field
from quantry.onnx.options.nested import nested
from quantry.onnx.options.option_row import Kind, OptionRow, sets
from quantry.recipe import DataType, FloatBias, Gptq, MatMulNBits, PerGroup, TensorSpec

MATRICES = ("Gemm", "MatMul")
_WIDTHS = {4: DataType.INT4, 8: DataType.INT8}
_ALGORITHMS = ("DEFAULT", "GPTQ")


def _n_bits(draft: Draft, value: bool) -> Draft:
    if not value:
        return draft
    selection = replace(draft.plan.selection, operators=draft.plan.selection.operators or MATRICES)
    weight = TensorSpec(DataType.INT4, granularity=PerGroup())
    plan = replace(draft.plan, weight=weight, weights_only=True, selection=selection)
    return replace(draft, plan=plan, bias=FloatBias(), format=MatMulNBits())


def _bits(draft: Draft, value: int) -> Draft:
    if value not in _WIDTHS:
        raise RecipeError(f"extra_options['MatMulNBitsParams']['Bits'] must be 4 or 8, got {value!r}")
    changed: Draft = with_field(draft, "plan.weight.dtype", _WIDTHS[value])
    return changed


def _group(draft: Draft, value: int) -> Draft:
    changed: Draft = with_field(draft, "plan.weight.granularity", PerGroup(value))
    return changed


def _algorithm(draft: Draft, value: str) -> Draft:
    if value.upper() not in _ALGORITHMS:
        raise RecipeError(
            f"extra_options['MatMulNBitsParams']['Algorithm'] must be 'DEFAULT' or 'GPTQ', got {value!r}"
            f"{nearest_spelling(value, _ALGORITHMS)}; GPTQ is the nearest to HQQ"
        )
    return replace(draft, gptq=Gptq()) if value.upper() == "GPTQ" else draft


N_BITS_ROWS = (
    OptionRow(
        "Algorithm",
        Kind.TEXT,
        "'DEFAULT'",
        "'DEFAULT' rounds to the nearest, 'GPTQ' lets later columns make up for the error of earlier ones.",
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
    OptionRow(
        "Symmetric",
        Kind.BOOL,
        "True",
        "Fix zero points at the centre of the type.",
        "plan.weight.symmetric",
        sets("plan.weight.symmetric"),
    ),
    OptionRow("Bits", Kind.INT, "4", "Width of weights: 4 or 8.", "plan.weight.dtype", _bits),
    OptionRow(
        "AccuracyLevel",
        Kind.INT,
        "0",
        "Precision of the kernel: 0 the input's, 1 float32, 2 float16, 3 bfloat16, 4 int8.",
        "emit.format = MatMulNBits(accuracy_level)",
        sets("format.accuracy_level"),
    ),
)
"""Every key of ``MatMulNBitsParams``."""

ROWS = (
    OptionRow(
        "WeightsOnly",
        Kind.BOOL,
        "False",
        "Quantize weights and leave activations float.",
        "plan.weights_only",
        sets("plan.weights_only"),
    ),
    OptionRow(
        "UseMatMulNBits",
        Kind.BOOL,
        "False",
        "Write Gemm and MatMul with 4- or 8-bit weights as com.microsoft MatMulNBits; the rest stays float.",
        "emit.format = MatMulNBits(), plan.weights_only, plan.weight",
        _n_bits,
    ),
    OptionRow(
        "MatMulNBitsParams",
        Kind.DICT,
        "{}",
        "Settings of MatMulNBits, below.",
        "plan.weight, emit.format",
        nested("MatMulNBitsParams", N_BITS_ROWS, "UseMatMulNBits", lambda draft: isinstance(draft.format, MatMulNBits)),
    ),
)
