"""One recipe for each kind of target that puts together what helped on real models, for users who read nothing.

All divide outlier channels where it pays, choose ranges by the error left behind the next function and round weights so
that errors make up for each other, biases included. Nothing is trained and no torch is needed: expect a few minutes on
two cores for a convolutional network of five million parameters and fifty images, in proportion to both.

Presets: recipes under the names users of AMD Quark and vai_q_onnx know, as data.

The letters read: activation type, weight type, then A(symmetric) or S(ymmetric) for activations and weights. ``X`` is
the power-of-two int8 of AMD's NPUs.
"""

from dataclasses import dataclass, replace

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe.equalization import CrossLayer, EqualizeOptions, SmoothQuant
from quantry.recipe.formats import Dynamic, EmitOptions, MatMulNBits, VitisDialect, VitisQdq
from quantry.recipe.layers import Selection
from quantry.recipe.methods import MinMax, MinMSE, Percentile
from quantry.recipe.mixing import LayerTarget, MixedPrecision, MixOptions, TensorShare, WithinError
from quantry.recipe.npu import NpuConversions, NpuLimits
from quantry.recipe.options import PlanOptions, PrepareOptions, ScaleOptions
from quantry.recipe.recipe import Recipe
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

_SAMPLES = 64
"""More samples hardly move means and Gram matrices, and cost time in proportion."""

_DAMPING = 0.1
"""Detectors want a little more than the usual 0.01, classifiers a little less."""

_WIDE_SHARE = 0.25

_GPTQ = TuneOptions((Gptq(samples=_SAMPLES, damping=_DAMPING),))

_NPU_SUMMARY = (
    "best for NPUs without training: XINT8 that keeps Sigmoid, SmoothQuant where it pays, ranges judged behind the "
    "next function, GPTQ"
)
_MIXED_SUMMARY = (
    "RECOMMENDED-NPU with the quarter of all tensors in int16 that matters most; without the limits on positions of "
    "8-bit NPUs"
)
_CPU_SUMMARY = (
    "best for CPUs without training: CPU_INT8, SmoothQuant where it pays, ranges judged behind the next function, GPTQ"
)


def recommended(npu: Recipe, cpu: Recipe) -> tuple[tuple[Recipe, str], ...]:
    """Return the recommended recipes, each with one line for tables.

    Args:
        npu: The plain recipe for NPUs.
        cpu: The plain recipe for CPUs.
    """
    best = _npu(npu)
    return ((best, _NPU_SUMMARY), (_mixed(best), _MIXED_SUMMARY), (_cpu(cpu), _CPU_SUMMARY))


def _npu(plain: Recipe) -> Recipe:
    return replace(
        plain,
        name="RECOMMENDED-NPU",
        # A network trained with Sigmoid loses more by HardSigmoid than by all of its rounding.
        prepare=replace(plain.prepare, npu=NpuConversions(sigmoid_to_hard_sigmoid=False)),
        equalize=replace(plain.equalize, smooth=SmoothQuant()),
        # The sums between the layers of a transformer have channels a hundred times the others: no int8 scale fits.
        plan=replace(plain.plan, float_residuals=True),
        scale=replace(plain.scale, activation=MinMSE(behind=True)),
        tune=_GPTQ,
    )


def _mixed(best: Recipe) -> Recipe:
    wide = TensorSpec(DataType.INT16, scale=PowerOfTwoScale())
    mixed = MixedPrecision(
        targets=(LayerTarget(wide, wide, OwnBias(wide)),),
        goal=TensorShare(_WIDE_SHARE),
        operators=("^.*",),
        apart=True,
        samples=12,
    )
    return replace(
        best,
        name="RECOMMENDED-NPU-MIXED",
        plan=replace(best.plan, activation=replace(best.plan.activation, dtype=DataType.INT8)),
        scale=replace(best.scale, npu=None),
        mix=MixOptions(mixed),
    )


def _cpu(plain: Recipe) -> Recipe:
    return replace(
        plain,
        name="RECOMMENDED-CPU",
        equalize=EqualizeOptions(smooth=SmoothQuant()),
        plan=replace(plain.plan, float_residuals=True),
        scale=replace(plain.scale, activation=MinMSE(behind=True)),
        tune=_GPTQ,
    )


@dataclass(frozen=True)
class Preset:
    """A named recipe.

    Attributes:
        recipe: What the name stands for.
        summary: One line for tables.
        pending: What the peer's preset of the same name also does and quantry does not yet; told to the user once.
    """

    recipe: Recipe
    summary: str
    pending: tuple[str, ...] = ()


_CLE = EqualizeOptions(CrossLayer())
_QUARK = EmitOptions(VitisQdq(VitisDialect.QUARK))
_XINT8 = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())


def _specs(activation: TensorSpec, weight: TensorSpec) -> PlanOptions:
    return PlanOptions(activation=activation, weight=weight, force_pass_through=True)


def _preset(name: str, summary: str, plan: PlanOptions, scale: ScaleOptions, *pending: str) -> Preset:
    """A preset of AMD Quark; all of them equalize across layers (include_cle)."""
    return Preset(Recipe(name=name, equalize=_CLE, plan=plan, scale=scale), summary, pending)


_INT8 = TensorSpec(DataType.INT8)
_INT8_ASYMMETRIC = TensorSpec(DataType.INT8, symmetric=False)
_UINT8_ASYMMETRIC = TensorSpec(DataType.UINT8, symmetric=False)
_INT16 = TensorSpec(DataType.INT16)
_UINT16_ASYMMETRIC = TensorSpec(DataType.UINT16, symmetric=False)

# The product of two 16-bit scales is so fine that an int32 bias on it overflows; it gets a scale of its own.
_OWN_INT32 = OwnBias(TensorSpec(DataType.INT32))
_MATRICES = PlanOptions(selection=Selection(operators=("Gemm", "MatMul")), constant_right_operand_only=True)
_ALIGNED = ScaleOptions(activation=MinMax(), align=("Concat",))


def _extended(
    name: str, summary: str, activation: DataType, weight: DataType, *, every_operator: bool = False
) -> Preset:
    """A preset of a type that needs no calibration, in the dialect that carries all of them."""
    specs = [
        TensorSpec(dtype, granularity=PerBlock()) if dtype.is_block else TensorSpec(dtype)
        for dtype in (activation, weight)
    ]
    bias = _OWN_INT32 if weight.is_integer else OwnBias(specs[1])
    forced = not activation.is_block and activation == weight
    plan = PlanOptions(specs[0], specs[1], bias, force_pass_through=forced, every_operator=every_operator)
    return Preset(Recipe(name=name, equalize=_CLE, plan=plan, emit=_QUARK), summary)


_EXTENDED: tuple[Preset, ...] = (
    _extended("FP16", "float16 activations, weights and biases", DataType.FLOAT16, DataType.FLOAT16),
    _extended(
        "BF16",
        "bfloat16 activations, weights and biases, of every operator",
        DataType.BFLOAT16,
        DataType.BFLOAT16,
        every_operator=True,
    ),
    *(
        _extended(name, f"{text} activations, weights and biases, no calibration", dtype, dtype)
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
    _extended("BF16_BFP16", "bfloat16 activations, BFP16 weights and biases", DataType.BFLOAT16, DataType.BFP16),
    _extended("BF16_MXINT8", "bfloat16 activations, MXINT8 weights and biases", DataType.BFLOAT16, DataType.MXINT8),
    _extended("MX9_INT8", "MX9 activations, int8 weights, int32 biases", DataType.MX9, DataType.INT8),
)

_FLOAT_ACTIVATIONS: tuple[Preset, ...] = (
    Preset(
        Recipe(
            name="UINT8_DYNAMIC_QUANT",
            plan=PlanOptions(
                weight=_UINT8_ASYMMETRIC,
                bias=FloatBias(),
                selection=Selection(operators=("Conv", "Gemm", "MatMul")),
                weights_only=True,
            ),
            emit=EmitOptions(Dynamic()),
        ),
        "Conv, Gemm and MatMul only: uint8 asymmetric weights, activations quantized to uint8 at run time, float "
        "biases, no calibration",
    ),
    Preset(
        Recipe(
            name="MATMUL_NBITS",
            plan=PlanOptions(
                weight=TensorSpec(DataType.INT4, granularity=PerGroup(128)),
                bias=FloatBias(),
                selection=Selection(operators=("Gemm", "MatMul")),
                weights_only=True,
            ),
            emit=EmitOptions(MatMulNBits(accuracy_level=1)),
        ),
        "Gemm and MatMul only: int4 symmetric weights in groups of 128 as MatMulNBits, float activations, no "
        "calibration",
    ),
)

_COSINE = 0.999


def _presets_mixed(base: Recipe, target: LayerTarget, summary: str) -> Preset:
    """A preset that lets layers change to coarser types as long as the outputs stay near."""
    goal = MixedPrecision((target,), WithinError(_COSINE, "cosine"))
    text = f"{summary} as long as the outputs keep a cosine of {_COSINE} with those of the float model"
    return Preset(replace(base, mix=MixOptions(goal)), text)


def _mixed_bfloat16(name: str, dtype: DataType) -> Preset:
    wide, narrow = TensorSpec(DataType.BFLOAT16), TensorSpec(dtype, granularity=PerBlock())
    base = Recipe(name=name, equalize=_CLE, plan=PlanOptions(wide, wide, FloatBias()), emit=_QUARK)
    summary = f"bfloat16 activations and weights, float biases; layers become {dtype.value}"
    return _presets_mixed(base, LayerTarget(narrow, narrow, FloatBias()), summary)


_INT16_ASYMMETRIC = TensorSpec(DataType.INT16, symmetric=False)
_MIXED: tuple[Preset, ...] = (
    _presets_mixed(
        Recipe(
            name="S16S16_MIXED_S8S8",
            equalize=_CLE,
            plan=replace(_specs(_INT16_ASYMMETRIC, _INT16), bias=OwnBias(_INT16)),
            scale=ScaleOptions(activation=Percentile(99.9999)),
        ),
        LayerTarget(_INT8_ASYMMETRIC, _INT8, OwnBias(_INT8)),
        "int16 asymmetric activations, int16 symmetric weights and biases, Percentile 99.9999; layers become int8",
    ),
    _mixed_bfloat16("BF16_MIXED_BFP16", DataType.BFP16),
    _mixed_bfloat16("BF16_MIXED_MXINT8", DataType.MXINT8),
)

# Split and BatchNormalization in other operators; nothing is computed differently.
_REWRITTEN = NpuConversions(
    leaky_relu=False,
    sigmoid_to_hard_sigmoid=False,
    hard_sigmoid=False,
    average_pool=False,
    reduce_mean=False,
    reduce_mean_to_pool=False,
    split_large_pool=False,
)

_ALL: tuple[Preset, ...] = (
    Preset(
        Recipe(
            name="XINT8",
            prepare=PrepareOptions(npu=NpuConversions()),
            equalize=_CLE,
            plan=PlanOptions(
                activation=replace(_XINT8, dtype=DataType.UINT8),
                weight=_XINT8,
                bias=OwnBias(_XINT8),
                force_pass_through=True,
            ),
            scale=ScaleOptions(activation=MinMSE(), weight=MinMSE(), npu=NpuLimits()),
        ),
        "power-of-two int8 for NPUs: uint8 activations centred at 128, int8 weights and biases, MinMSE; operators and "
        "positions as the NPU has them",
    ),
    _preset(
        "S8S8_AAWS",
        "int8 asymmetric activations, int8 symmetric weights, Percentile 99.9999",
        _specs(_INT8_ASYMMETRIC, _INT8),
        ScaleOptions(activation=Percentile(99.9999)),
    ),
    _preset(
        "U8S8_AAWS",
        "uint8 asymmetric activations, int8 symmetric weights, Percentile",
        _specs(_UINT8_ASYMMETRIC, _INT8),
        ScaleOptions(activation=Percentile()),
    ),
    _preset(
        "U8U8_AAWA",
        "uint8 asymmetric activations and weights, Percentile",
        _specs(_UINT8_ASYMMETRIC, _UINT8_ASYMMETRIC),
        ScaleOptions(activation=Percentile()),
    ),
    _preset(
        "S16S8_ASWS",
        "int16 symmetric activations, int8 symmetric weights, Percentile",
        _specs(_INT16, _INT8),
        ScaleOptions(activation=Percentile()),
    ),
    _preset(
        "U16S8_AAWS",
        "uint16 asymmetric activations, int8 symmetric weights, Percentile",
        _specs(_UINT16_ASYMMETRIC, _INT8),
        ScaleOptions(activation=Percentile()),
    ),
    _preset(
        "A8W8",
        "int8 symmetric activations and weights, MinMax; one scale around Concat",
        _specs(_INT8, _INT8),
        _ALIGNED,
    ),
    _preset(
        "A16W8",
        "int16 symmetric activations, int8 symmetric weights, MinMax; one scale around Concat",
        _specs(_INT16, _INT8),
        _ALIGNED,
    ),
    _preset(
        "INT8_CNN_DEFAULT",
        "uint8 asymmetric activations, int8 symmetric weights, MinMax",
        _specs(_UINT8_ASYMMETRIC, _INT8),
        ScaleOptions(activation=MinMax()),
    ),
    _preset(
        "INT16_CNN_DEFAULT",
        "uint16 asymmetric activations, int16 symmetric weights, MinMax",
        replace(_specs(_UINT16_ASYMMETRIC, _INT16), bias=_OWN_INT32),
        ScaleOptions(activation=MinMax()),
    ),
    _preset(
        "INT8_TRANSFORMER_DEFAULT",
        "MatMul with a constant operand and Gemm only: uint8 asymmetric activations, int8 symmetric weights, MinMax "
        "averaged over batches",
        replace(_MATRICES, activation=_UINT8_ASYMMETRIC),
        ScaleOptions(activation=MinMax(moving_average=0.01)),
    ),
    _preset(
        "INT16_TRANSFORMER_DEFAULT",
        "MatMul with a constant operand and Gemm only: uint16 asymmetric activations, int16 symmetric weights, MinMax "
        "averaged over batches",
        replace(_MATRICES, activation=_UINT16_ASYMMETRIC, weight=_INT16, bias=_OWN_INT32),
        ScaleOptions(activation=MinMax(moving_average=0.01)),
    ),
    Preset(
        Recipe(
            name="CPU_INT8",
            plan=PlanOptions(
                activation=_UINT8_ASYMMETRIC,
                weight=replace(_INT8, granularity=PerChannel()),
                fused_activations=("Relu", "Clip"),
            ),
            scale=ScaleOptions(activation=MinMSE(), weight=MinMSE()),
        ),
        "quantry's own for CPUs: uint8 asymmetric activations, int8 weights per channel, MinMSE",
    ),
    Preset(
        Recipe(
            name="VINT8",
            prepare=PrepareOptions(clip6_to_relu=True, npu=_REWRITTEN),
            equalize=_CLE,
            plan=PlanOptions(_XINT8, _XINT8, OwnBias(_XINT8), fused_activations=(), every_operator=True),
            scale=ScaleOptions(activation=MinMSE(), weight=MinMSE()),
            emit=EmitOptions(dedicated_pairs=True),
        ),
        "power-of-two int8 activations, weights and biases of every operator, MinMSE; a pair between every operator "
        "and its activation, and one for each reader; Split as Slice",
        ("conversion of Clip to Relu behind calibration (ConvertClipToRelu)",),
    ),
    *_EXTENDED,
    *_FLOAT_ACTIVATIONS,
    *_MIXED,
)

_UNTRAINED = "AdaQuant of weights that are no integers; it leaves them alone here"

# The numbers that AMD Quark documents for both (FastFinetune).
_ADAROUND_STEPS = TuneOptions((AdaRound(samples=1000, batch_size=2, iterations=1000, early_stop=True),))
_ADAQUANT_STEPS = TuneOptions((AdaQuant(samples=1000, batch_size=2, iterations=1000, early_stop=True),))
_ADAROUND = ("XINT8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "A8W8", "A16W8", "U16S8_AAWS")
_MX = ("MX4", "MX6", "MX9", "MXFP8E5M2", "MXFP8E4M3", "MXFP6E3M2", "MXFP6E2M3", "MXFP4E2M1", "MXINT8")
_ADAQUANT = (*_ADAROUND, "FP16", "BF16", "BFP16", *_MX, "BF16_MIXED_BFP16", "BF16_MIXED_MXINT8")


def _finetuned(base: Preset, name: str, tune: TuneOptions) -> Preset:
    """A preset that differs from another by finetuning only."""
    pending = () if base.recipe.plan.weight.dtype.is_integer else (_UNTRAINED,)
    recipe = replace(base.recipe, name=name, tune=tune)
    return Preset(recipe, f"{base.recipe.name} with {type(tune.steps[0]).__name__}", (*base.pending, *pending))


def _accurate(base: Preset) -> Preset:
    """An _ACCURATE preset: the _DEFAULT one with Percentile and AdaRound."""
    recipe = replace(base.recipe, scale=ScaleOptions(activation=Percentile(99.9999)), tune=_ADAROUND_STEPS)
    name = base.recipe.name.replace("_DEFAULT", "_ACCURATE")
    return Preset(replace(recipe, name=name), f"{base.recipe.name} with Percentile 99.9999 and AdaRound", base.pending)


_NAMED = {preset.recipe.name: preset for preset in _ALL}

PRESETS: dict[str, Preset] = {
    preset.recipe.name: preset
    for preset in (
        *_ALL,
        *(Preset(*entry) for entry in recommended(_NAMED["XINT8"].recipe, _NAMED["CPU_INT8"].recipe)),
        *(_accurate(preset) for name, preset in _NAMED.items() if name.endswith("_DEFAULT")),
        *(_finetuned(_NAMED[name], f"{name}_ADAROUND", _ADAROUND_STEPS) for name in _ADAROUND),
        *(_finetuned(_NAMED[name], f"{name}_ADAQUANT", _ADAQUANT_STEPS) for name in _ADAQUANT),
    )
}


def find_preset(name: str) -> Preset:
    """Return the preset of that name.

    Args:
        name: One of `PRESETS`, in any case.

    Returns:
        The preset.

    Raises:
        RecipeError: There is no such preset; the message has the nearest spelling.
    """
    preset = PRESETS.get(name.upper())
    if preset is None:
        raise RecipeError(
            f"recipe must be the name of a preset, got {name!r}{nearest_spelling(name, PRESETS)}; "
            "see `quantry presets` for all names"
        )
    return preset
