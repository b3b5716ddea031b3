"""Presets: named recipes. This is their only definition; the facade derives AMD Quark's configurations from it.

Most names are those of AMD Quark and vai_q_onnx. ``S8S8_AAWS`` reads: type of activations, type of weights (S for
signed, U for unsigned, and the bits), then A(symmetric) or S(ymmetric) activations and weights. ``X`` is the
power-of-two int8 of AMD's NPUs.
"""

from dataclasses import dataclass, replace

from quantry.errors import RecipeError, nearest_spelling
from quantry.facts.operators import MATRIX_PRODUCTS
from quantry.recipe.equalization import CrossLayer, EqualizeOptions, SmoothQuant
from quantry.recipe.formats import Dynamic, EmitOptions, MatMulNBits, VitisDialect, VitisQdq
from quantry.recipe.layers import Selection
from quantry.recipe.methods import HalfQuadratic, MinMax, MinMSE, Percentile
from quantry.recipe.mixing import LayerTarget, MixedPrecision, MixOptions, WithinError
from quantry.recipe.npu import NpuConversions, NpuLimits
from quantry.recipe.options import PlanOptions, PrepareOptions, ScaleOptions
from quantry.recipe.recipe import Recipe
from quantry.recipe.recommended import recommended_recipes
from quantry.recipe.tensor_spec import (
    DataType,
    FloatBias,
    OwnBias,
    PerBlock,
    PerChannel,
    PerGroup,
    PowerOfTwoScale,
    TensorSpec,
)
from quantry.recipe.tuning import AdaQuant, AdaRound, Gptq, TuneOptions


@dataclass(frozen=True)
class Preset:
    """A named recipe.

    Attributes:
        recipe: The recipe.
        summary: One line for tables.
        pending: What AMD Quark's preset of this name does and quantry does not yet do; logged when it is used.
        in_quark: Whether AMD Quark has a configuration of this name.
    """

    recipe: Recipe
    summary: str
    pending: tuple[str, ...] = ()
    in_quark: bool = True


# Every preset of AMD Quark that calibrates runs cross-layer equalization (include_cle=True).
_CLE = EqualizeOptions(CrossLayer())
_QUARK = EmitOptions(VitisQdq(VitisDialect.QUARK))

_INT8, _INT16 = TensorSpec(DataType.INT8), TensorSpec(DataType.INT16)
_INT8_ASYMMETRIC, _INT16_ASYMMETRIC = replace(_INT8, symmetric=False), replace(_INT16, symmetric=False)
_UINT8_ASYMMETRIC = TensorSpec(DataType.UINT8, symmetric=False)
_UINT16_ASYMMETRIC = TensorSpec(DataType.UINT16, symmetric=False)
_POWER_OF_TWO_INT8 = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())

# The product of two 16-bit scales is so fine that an int32 bias on that grid overflows; the bias gets its own scale.
_OWN_INT32 = OwnBias(TensorSpec(DataType.INT32))
_MATRICES = PlanOptions(selection=Selection(operators=MATRIX_PRODUCTS), constant_right_operand_only=True)
_PERCENTILE = ScaleOptions(activation=Percentile())
_WIDE_PERCENTILE = ScaleOptions(activation=Percentile(99.9999))
_MIN_MAX = ScaleOptions(activation=MinMax())
_MOVING_AVERAGE = ScaleOptions(activation=MinMax(moving_average=0.01))
_ALIGNED = ScaleOptions(activation=MinMax(), align=("Concat",))
_MIN_MSE = ScaleOptions(activation=MinMSE(), weight=MinMSE())


def _integers(name: str, summary: str, plan: PlanOptions, scale: ScaleOptions) -> Preset:
    return Preset(Recipe(name=name, equalize=_CLE, plan=plan, scale=scale), summary)


def _all_operators(activation: TensorSpec, weight: TensorSpec) -> PlanOptions:
    return PlanOptions(activation=activation, weight=weight, force_pass_through=True)


# Only the rewrites of Split and BatchNormalization, which do not change what the model computes.
_REWRITES = NpuConversions(
    leaky_relu=False,
    sigmoid_to_hard_sigmoid=False,
    hard_sigmoid=False,
    average_pool=False,
    reduce_mean=False,
    reduce_mean_to_pool=False,
    split_large_pool=False,
)

_INTEGERS: tuple[Preset, ...] = (
    Preset(
        Recipe(
            name="XINT8",
            prepare=PrepareOptions(npu=NpuConversions()),
            equalize=_CLE,
            plan=PlanOptions(
                activation=replace(_POWER_OF_TWO_INT8, dtype=DataType.UINT8),
                weight=_POWER_OF_TWO_INT8,
                bias=OwnBias(_POWER_OF_TWO_INT8),
                force_pass_through=True,
            ),
            scale=replace(_MIN_MSE, npu=NpuLimits()),
        ),
        "power-of-two int8 for NPUs: uint8 activations with zero point 128, int8 weights and biases, MinMSE; operators "
        "and fraction bits follow the NPU's rules",
    ),
    _integers(
        "S8S8_AAWS",
        "int8 asymmetric activations, int8 symmetric weights, Percentile 99.9999",
        _all_operators(_INT8_ASYMMETRIC, _INT8),
        _WIDE_PERCENTILE,
    ),
    _integers(
        "U8S8_AAWS",
        "uint8 asymmetric activations, int8 symmetric weights, Percentile",
        _all_operators(_UINT8_ASYMMETRIC, _INT8),
        _PERCENTILE,
    ),
    _integers(
        "U8U8_AAWA",
        "uint8 asymmetric activations and weights, Percentile",
        _all_operators(_UINT8_ASYMMETRIC, _UINT8_ASYMMETRIC),
        _PERCENTILE,
    ),
    _integers(
        "S16S8_ASWS",
        "int16 symmetric activations, int8 symmetric weights, Percentile",
        _all_operators(_INT16, _INT8),
        _PERCENTILE,
    ),
    _integers(
        "U16S8_AAWS",
        "uint16 asymmetric activations, int8 symmetric weights, Percentile",
        _all_operators(_UINT16_ASYMMETRIC, _INT8),
        _PERCENTILE,
    ),
    _integers(
        "A8W8",
        "int8 symmetric activations and weights, MinMax; inputs and output of Concat share a scale",
        _all_operators(_INT8, _INT8),
        _ALIGNED,
    ),
    _integers(
        "A16W8",
        "int16 symmetric activations, int8 symmetric weights, MinMax; inputs and output of Concat share a scale",
        _all_operators(_INT16, _INT8),
        _ALIGNED,
    ),
    _integers(
        "INT8_CNN_DEFAULT",
        "uint8 asymmetric activations, int8 symmetric weights, MinMax",
        _all_operators(_UINT8_ASYMMETRIC, _INT8),
        _MIN_MAX,
    ),
    _integers(
        "INT16_CNN_DEFAULT",
        "uint16 asymmetric activations, int16 symmetric weights, MinMax",
        replace(_all_operators(_UINT16_ASYMMETRIC, _INT16), bias=_OWN_INT32),
        _MIN_MAX,
    ),
    _integers(
        "INT8_TRANSFORMER_DEFAULT",
        "only Gemm and MatMul with a constant operand: uint8 asymmetric activations, int8 symmetric weights, MinMax "
        "averaged over batches",
        replace(_MATRICES, activation=_UINT8_ASYMMETRIC),
        _MOVING_AVERAGE,
    ),
    _integers(
        "INT16_TRANSFORMER_DEFAULT",
        "only Gemm and MatMul with a constant operand: uint16 asymmetric activations, int16 symmetric weights, MinMax "
        "averaged over batches",
        replace(_MATRICES, activation=_UINT16_ASYMMETRIC, weight=_INT16, bias=_OWN_INT32),
        _MOVING_AVERAGE,
    ),
    Preset(
        Recipe(
            name="CPU_INT8",
            plan=PlanOptions(
                activation=_UINT8_ASYMMETRIC,
                weight=replace(_INT8, granularity=PerChannel()),
                fused_activations=("Relu", "Clip"),
            ),
            scale=_MIN_MSE,
        ),
        "quantry's own preset for CPUs: uint8 asymmetric activations, int8 per-channel weights, MinMSE",
        in_quark=False,
    ),
    Preset(
        Recipe(
            name="VINT8",
            prepare=PrepareOptions(clip6_to_relu=True, npu=_REWRITES),
            equalize=_CLE,
            plan=PlanOptions(
                _POWER_OF_TWO_INT8,
                _POWER_OF_TWO_INT8,
                OwnBias(_POWER_OF_TWO_INT8),
                fused_activations=(),
                every_operator=True,
            ),
            scale=_MIN_MSE,
            emit=EmitOptions(dedicated_pairs=True),
        ),
        "power-of-two int8 activations, weights and biases of every operator, MinMSE; a Q/DQ pair for each reader of a "
        "tensor, also between an operator and its activation function; Split is written as Slice",
        ("conversion of Clip to Relu after calibration (ConvertClipToRelu)",),
    ),
)


def _uncalibrated(
    name: str, summary: str, activation: DataType, weight: DataType, *, every_operator: bool = False
) -> Preset:
    """Return a preset of float and block formats, which need no calibration; only the Quark dialect has them all."""
    specs = [
        TensorSpec(dtype, granularity=PerBlock()) if dtype.is_block else TensorSpec(dtype)
        for dtype in (activation, weight)
    ]
    bias = _OWN_INT32 if weight.is_integer else OwnBias(specs[1])
    forced = not activation.is_block and activation == weight
    plan = PlanOptions(specs[0], specs[1], bias, force_pass_through=forced, every_operator=every_operator)
    return Preset(Recipe(name=name, equalize=_CLE, plan=plan, emit=_QUARK), summary)


_BF16 = DataType.BFLOAT16
_UNCALIBRATED: tuple[Preset, ...] = (
    _uncalibrated("FP16", "float16 activations, weights and biases", DataType.FLOAT16, DataType.FLOAT16),
    _uncalibrated(
        "BF16", "bfloat16 activations, weights and biases of every operator", _BF16, _BF16, every_operator=True
    ),
    *(
        _uncalibrated(name, f"{text} activations, weights and biases, no calibration", dtype, dtype)
        for name, text, dtype in (
            ("BFP16", "BFP16 (blocks of 8)", DataType.BFP16),
            ("MX4", "MX4 (blocks of 16, pairs)", DataType.MX4),
            ("MX6", "MX6 (blocks of 16, pairs)", DataType.MX6),
            ("MX9", "MX9 (blocks of 16, pairs)", DataType.MX9),
            ("MXFP8E5M2", "MXFP8 E5M2 (blocks of 32)", DataType.MXFP8E5M2),
            ("MXFP8E4M3", "MXFP8 E4M3 (blocks of 32)", DataType.MXFP8E4M3),
            ("MXFP6E3M2", "MXFP6 E3M2 (blocks of 32)", DataType.MXFP6E3M2),
            ("MXFP6E2M3", "MXFP6 E2M3 (blocks of 32)", DataType.MXFP6E2M3),
            ("MXFP4E2M1", "MXFP4 E2M1 (blocks of 32)", DataType.MXFP4E2M1),
            ("MXINT8", "MXINT8 (blocks of 32)", DataType.MXINT8),
        )
    ),
    _uncalibrated("BF16_BFP16", "bfloat16 activations, BFP16 weights and biases", _BF16, DataType.BFP16),
    _uncalibrated("BF16_MXINT8", "bfloat16 activations, MXINT8 weights and biases", _BF16, DataType.MXINT8),
    _uncalibrated("MX9_INT8", "MX9 activations, int8 weights, int32 biases", DataType.MX9, DataType.INT8),
)


def _weights_only(operators: tuple[str, ...], weight: TensorSpec) -> PlanOptions:
    selection = Selection(operators=operators)
    return PlanOptions(weight=weight, bias=FloatBias(), selection=selection, weights_only=True)


_ASYMMETRIC_GROUPS = TensorSpec(DataType.UINT4, symmetric=False, granularity=PerGroup(128))


def _four_bits(suffix: str, summary: str, recipe: Recipe) -> Preset:
    """Return a preset for language models: uint4 weights in groups of 128, found in another way."""
    plan, emit = _weights_only(MATRIX_PRODUCTS, _ASYMMETRIC_GROUPS), EmitOptions(MatMulNBits(accuracy_level=1))
    four_bits = replace(recipe, name=f"MATMUL_NBITS_{suffix}", plan=plan, emit=emit)
    return Preset(
        four_bits, f"only Gemm and MatMul: uint4 weights in groups of 128 as MatMulNBits, {summary}", in_quark=False
    )


_FLOAT_ACTIVATIONS: tuple[Preset, ...] = (
    Preset(
        Recipe(
            name="UINT8_DYNAMIC_QUANT",
            plan=_weights_only(("Conv", *MATRIX_PRODUCTS), _UINT8_ASYMMETRIC),
            emit=EmitOptions(Dynamic()),
        ),
        "only Conv, Gemm and MatMul: uint8 asymmetric weights, activations quantized to uint8 at run time, float "
        "biases, no calibration",
    ),
    Preset(
        Recipe(
            name="MATMUL_NBITS",
            plan=_weights_only(MATRIX_PRODUCTS, TensorSpec(DataType.INT4, granularity=PerGroup(128))),
            scale=ScaleOptions(weight=MinMSE(either_sign=True)),
            emit=EmitOptions(MatMulNBits(accuracy_level=1)),
        ),
        "only Gemm and MatMul: int4 symmetric weights in groups of 128 with the least squared error, written as "
        "MatMulNBits, float activations, no calibration",
    ),
    _four_bits(
        "GPTQ",
        "rounded so that later weights make up for the errors of earlier ones (GPTQ)",
        Recipe(scale=ScaleOptions(weight=MinMSE()), tune=TuneOptions((Gptq(samples=64, damping=0.1),))),
    ),
    _four_bits(
        "AWQ",
        "after channels with large activations got larger weights (AWQ); needs data",
        # Folding costs nothing, so a gain of 1 % is worth it.
        Recipe(scale=ScaleOptions(weight=MinMSE()), equalize=EqualizeOptions(smooth=SmoothQuant(gain=1.1))),
    ),
    _four_bits(
        "HQQ",
        "with half-quadratic zero points (HQQ), no calibration",
        Recipe(scale=ScaleOptions(weight=HalfQuadratic())),
    ),
)


def _float8(name: str, dtype: DataType, digits: str) -> Preset:
    """Return a preset of 8-bit floats for the products that GPUs compute in fp8; the rest of the model stays float."""
    plan = PlanOptions(
        activation=TensorSpec(dtype),
        weight=TensorSpec(dtype, granularity=PerChannel()),
        bias=FloatBias(),
        selection=Selection(operators=("Conv", *MATRIX_PRODUCTS)),
        float_pixels=True,
        inputs_only=True,  # GPUs return the results of these products in 16 or 32 bits
    )
    summary = f"only inputs and weights of Conv, Gemm and MatMul: 8-bit floats ({digits}), per-channel weights"
    return Preset(
        Recipe(name=name, plan=plan, scale=_MIN_MAX), f"{summary}, float biases, MinMax; for GPUs", in_quark=False
    )


_FLOAT8: tuple[Preset, ...] = (
    _float8("FP8_E4M3", DataType.FLOAT8E4M3FN, "E4M3FN"),
    _float8("FP8_E5M2", DataType.FLOAT8E5M2, "E5M2"),
)

# The limit of AMD Quark's mixed presets (MetricThreshold 0.001 of the cosine distance).
_COSINE = 0.999


def _mixed(base: Recipe, target: LayerTarget, summary: str) -> Preset:
    """Return a preset that demotes layers to coarser types as long as the outputs stay close to the float model's."""
    goal = MixedPrecision((target,), WithinError(_COSINE, "cosine"))
    text = f"{summary} while the cosine similarity to the float model's outputs stays above {_COSINE}"
    return Preset(replace(base, mix=MixOptions(goal)), text)


def _mixed_bfloat16(name: str, dtype: DataType) -> Preset:
    wide, narrow = TensorSpec(_BF16), TensorSpec(dtype, granularity=PerBlock())
    base = Recipe(name=name, equalize=_CLE, plan=PlanOptions(wide, wide, FloatBias()), emit=_QUARK)
    summary = f"bfloat16 activations and weights, float biases; layers become {dtype.value}"
    return _mixed(base, LayerTarget(narrow, narrow, FloatBias()), summary)


_MIXED: tuple[Preset, ...] = (
    _mixed(
        Recipe(
            name="S16S16_MIXED_S8S8",
            equalize=_CLE,
            plan=replace(_all_operators(_INT16_ASYMMETRIC, _INT16), bias=OwnBias(_INT16)),
            scale=_WIDE_PERCENTILE,
        ),
        LayerTarget(_INT8_ASYMMETRIC, _INT8, OwnBias(_INT8)),
        "int16 asymmetric activations, int16 symmetric weights and biases, Percentile 99.9999; layers become int8",
    ),
    _mixed_bfloat16("BF16_MIXED_BFP16", DataType.BFP16),
    _mixed_bfloat16("BF16_MIXED_MXINT8", DataType.MXINT8),
)

_BASE: dict[str, Preset] = {
    preset.recipe.name: preset for preset in (*_INTEGERS, *_FLOAT8, *_UNCALIBRATED, *_FLOAT_ACTIVATIONS, *_MIXED)
}

_RECOMMENDED = tuple(
    Preset(recipe, summary, in_quark=False)
    for recipe, summary in recommended_recipes(*(_BASE[name].recipe for name in ("XINT8", "CPU_INT8", "MATMUL_NBITS")))
)

# AMD Quark's documented settings of FastFinetune for both algorithms.
_ADAROUND = TuneOptions((AdaRound(samples=1000, batch_size=2, iterations=1000, early_stop=True),))
_ADAQUANT = TuneOptions((AdaQuant(samples=1000, batch_size=2, iterations=1000, early_stop=True),))
_WITH_ADAROUND = ("XINT8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "A8W8", "A16W8", "U16S8_AAWS")
_BLOCK_FORMATS = ("MX4", "MX6", "MX9", "MXFP8E5M2", "MXFP8E4M3", "MXFP6E3M2", "MXFP6E2M3", "MXFP4E2M1", "MXINT8")
_WITH_ADAQUANT = (
    *_WITH_ADAROUND,
    *("FP16", "BF16", "BFP16", *_BLOCK_FORMATS),
    *("BF16_MIXED_BFP16", "BF16_MIXED_MXINT8"),
)


def _finetuned(base: str, suffix: str, tune: TuneOptions) -> Preset:
    """Return a preset that differs from another by finetuning only."""
    plain = _BASE[base]
    trained = plain.recipe.plan.weight.dtype.is_integer
    pending = () if trained else ("training of weights that are not integers: AdaQuant skips them",)
    recipe = replace(plain.recipe, name=f"{base}_{suffix}", tune=tune)
    return Preset(recipe, f"{base} with {type(tune.steps[0]).__name__}", (*plain.pending, *pending))


def _accurate(base: str) -> Preset:
    """Return an _ACCURATE preset: the _DEFAULT one with Percentile and AdaRound."""
    name = base.replace("_DEFAULT", "_ACCURATE")
    recipe = replace(_BASE[base].recipe, name=name, scale=_WIDE_PERCENTILE, tune=_ADAROUND)
    return Preset(recipe, f"{base} with Percentile 99.9999 and AdaRound")


PRESETS: dict[str, Preset] = {
    preset.recipe.name: preset
    for preset in (
        *_BASE.values(),
        *_RECOMMENDED,
        *(_accurate(name) for name in _BASE if name.endswith("_DEFAULT")),
        *(_finetuned(name, "ADAROUND", _ADAROUND) for name in _WITH_ADAROUND),
        *(_finetuned(name, "ADAQUANT", _ADAQUANT) for name in _WITH_ADAQUANT),
    )
}


def find_preset(name: str) -> Preset:
    """Return the preset of that name.

    Args:
        name: One of `PRESETS`, in any case.

    Raises:
        RecipeError: There is no such preset; the message suggests the nearest spelling.
    """
    preset = PRESETS.get(name.upper())
    if preset is None:
        raise RecipeError(
            f"recipe must be the name of a preset, got {name!r}{nearest_spelling(name, PRESETS)}; "
            "see `quantry presets` for all names"
        )
    return preset
