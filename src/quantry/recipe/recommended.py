"""The recommended recipes: what helped on real models, for each kind of target, without training and without torch."""

from dataclasses import replace

from quantry.recipe.equalization import CrossLayer, EqualizeOptions, FitPowers, JointEqualization, Rotation, SmoothQuant
from quantry.recipe.methods import MinMSE
from quantry.recipe.mixing import LayerTarget, MixedPrecision, MixOptions, SizeShare, TensorShare
from quantry.recipe.npu import NpuConversions
from quantry.recipe.options import ScaleOptions
from quantry.recipe.recipe import Recipe
from quantry.recipe.tensor_spec import (
    DataType,
    DerivedBias,
    FloatBias,
    OwnBias,
    PerChannel,
    PerGroup,
    PowerOfTwoScale,
    TensorSpec,
)
from quantry.recipe.tuning import Gptq, TuneOptions

# They take a few minutes on two cores for a CNN of five million parameters and fifty images, in proportion to both.
# 64 samples: more barely change means and Gram matrices and cost time in proportion. Damping 0.1: detectors want a
# little more than the usual 0.01, classifiers a little less.
_GPTQ = TuneOptions((Gptq(samples=64, damping=0.1),))


def _npu(plain: Recipe) -> Recipe:
    return replace(
        plain,
        name="RECOMMENDED-NPU",
        # A network trained with Sigmoid loses more accuracy to HardSigmoid than to rounding.
        prepare=replace(plain.prepare, npu=NpuConversions(sigmoid_to_hard_sigmoid=False)),
        equalize=EqualizeOptions(
            smooth=SmoothQuant(), joint=JointEqualization(), powers=FitPowers(), rotate=Rotation()
        ),
        # Residual sums of transformers have channels 100x larger than the others: no int8 scale fits both.
        plan=replace(plain.plan, float_residuals=True, float_final_pools=True),
        scale=replace(plain.scale, activation=MinMSE(after_functions=True)),
        tune=_GPTQ,
    )


def _npu_integer(best: Recipe) -> Recipe:
    # Rotated sums have no large channels, so 8 bits are enough and the graph stays in one piece.
    return replace(best, name="RECOMMENDED-NPU-INTEGER", plan=replace(best.plan, float_residuals=False))


def _before_types_are_chosen(options: EqualizeOptions, cross_layer: CrossLayer | None) -> EqualizeOptions:
    # Joint equalization would count every tensor with its narrow type, and spare above all those that get a wide one.
    return replace(options, cross_layer=cross_layer, joint=None, rotate=None)


def _npu_mixed(best: Recipe, cross_layer: CrossLayer | None) -> Recipe:
    wide = TensorSpec(DataType.INT16, scale=PowerOfTwoScale())
    mixed = MixedPrecision(
        targets=(LayerTarget(wide, wide, OwnBias(wide)),),
        goal=TensorShare(0.25),
        operators=("^.*",),
        per_tensor=True,
        samples=12,
    )
    return replace(
        best,
        name="RECOMMENDED-NPU-MIXED",
        equalize=_before_types_are_chosen(best.equalize, cross_layer),
        # The sums of transformers get 16 bits instead of float: all of the model is integer.
        plan=replace(best.plan, activation=replace(best.plan.activation, dtype=DataType.INT8), float_residuals=False),
        scale=replace(best.scale, npu=None),
        mix=MixOptions(mixed),
    )


def _cpu(plain: Recipe) -> Recipe:
    return replace(
        plain,
        name="RECOMMENDED-CPU",
        equalize=EqualizeOptions(smooth=SmoothQuant(), joint=JointEqualization()),
        plan=replace(plain.plan, float_residuals=True),
        scale=replace(plain.scale, activation=MinMSE(after_functions=True), keep_levels=True),
        tune=_GPTQ,
    )


def _htp(best: Recipe, name: str, dtype: DataType) -> Recipe:
    activation = TensorSpec(dtype, symmetric=False)
    # Nodes in float leave the NPU, and every change of device costs more than it saves.
    plan = replace(best.plan, activation=activation, float_residuals=False, force_pass_through=True)
    return replace(best, name=name, plan=plan)


def _tensorrt(best: Recipe) -> Recipe:
    activation = TensorSpec(DataType.INT8)
    # TensorRT adds biases in float, and has int8 with zero point 0 only.
    return replace(best, name="RECOMMENDED-TENSORRT", plan=replace(best.plan, activation=activation, bias=FloatBias()))


def _llm(plain: Recipe) -> Recipe:
    # Groups of 32 with a zero point: half a bit per weight more, and the settings of most published 4-bit models.
    spec = TensorSpec(DataType.UINT4, symmetric=False, granularity=PerGroup(32))
    return replace(
        plain,
        name="RECOMMENDED-LLM",
        plan=replace(plain.plan, weight=spec),
        scale=ScaleOptions(weight=MinMSE()),
        tune=_GPTQ,
    )


def _with_tables(llm: Recipe) -> Recipe:
    selection = replace(llm.plan.selection, operators=(*llm.plan.selection.operators, "Gather"))
    return replace(llm, name="RECOMMENDED-LLM-EMBEDDINGS", plan=replace(llm.plan, selection=selection))


def _four_bit_weights(best: Recipe, name: str) -> Recipe:
    """Return a recipe with one 4-bit scale per output channel; 15 levels for all channels together are too few.

    With so few levels a zero point is worth 0.7 to 3 dB: the largest and the smallest weight of a channel rarely have
    the same size. Power-of-two scales go without, because NPUs have no zero points.
    """
    is_symmetric = isinstance(best.plan.weight.scale, PowerOfTwoScale)
    weight = replace(best.plan.weight, dtype=DataType.INT4, granularity=PerChannel(), symmetric=is_symmetric)
    # Limits on fraction bits are those of 8-bit products with one scale per weight, and so is a bias of 8 bits.
    plan = replace(best.plan, weight=weight, bias=DerivedBias())
    return replace(best, name=name, plan=plan, scale=replace(best.scale, npu=None))


# With 4 and 8 bits, a quarter of the difference is five bits for each weight on average.
_FIVE_BITS = SizeShare(0.25)


def _with_eight_bits(coarse: Recipe, cross_layer: CrossLayer | None = None) -> Recipe:
    """Return a recipe with 4-bit weights that gives 8 bits to the layers that lose most with 4."""
    equalize = _before_types_are_chosen(coarse.equalize, cross_layer)
    # Integer kernels of CPUs take no zero points of 8-bit weights per channel.
    wide = LayerTarget(weight=replace(coarse.plan.weight, dtype=DataType.INT8, symmetric=True))
    mixed = MixOptions(MixedPrecision(targets=(wide,), goal=_FIVE_BITS))
    return replace(coarse, name=f"{coarse.name}-MIXED", equalize=equalize, mix=mixed)


_AFTER = "ranges chosen by the error after the next function, GPTQ"
_WHERE_IT_HELPS = "rotation and SmoothQuant where they help, joint equalization"
_MIXED = "with int8 weights in the layers that lose most: five bits per weight on average"
_FITTED = f"tensors that fit power-of-two scales, {_AFTER}"


Described = tuple[tuple[Recipe, str], ...]
"""Recipes, each with one line for tables."""


def recommended_recipes(xint8: Recipe, cpu_int8: Recipe, matmul_nbits: Recipe) -> Described:
    """Return the recommended recipes, each with one line for tables.

    Args:
        xint8: The plain preset for NPUs.
        cpu_int8: The plain preset for CPUs.
        matmul_nbits: The plain preset for language models.
    """
    npu, cpu, llm = _npu(xint8), _cpu(cpu_int8), _llm(matmul_nbits)
    return (
        *_eight_bits(npu, cpu, xint8.equalize.cross_layer),
        *_four_bits(npu, cpu, xint8.equalize.cross_layer),
        *_other_targets(cpu),
        (llm, "best for language models without training: MATMUL_NBITS with uint4 weights in groups of 32, GPTQ"),
        (_with_tables(llm), "RECOMMENDED-LLM with tables of embeddings in 4 bits too, read by GatherBlockQuantized"),
    )


def _eight_bits(npu: Recipe, cpu: Recipe, cross_layer: CrossLayer | None) -> Described:
    return (
        (
            npu,
            f"best for NPUs without training: XINT8 that keeps Sigmoid, {_WHERE_IT_HELPS}, {_FITTED}",
        ),
        (
            _npu_integer(npu),
            "RECOMMENDED-NPU with 8-bit residual sums: transformers stay on the NPU as a whole",
        ),
        (
            _npu_mixed(npu, cross_layer),
            "RECOMMENDED-NPU with the most sensitive quarter of all tensors in int16, without limits on fraction bits",
        ),
        (
            cpu,
            f"best for CPUs without training: CPU_INT8, SmoothQuant where it helps, joint equalization, {_AFTER}",
        ),
    )


def _four_bits(npu: Recipe, cpu: Recipe, cross_layer: CrossLayer | None) -> Described:
    cpu_w4, npu_w4 = _four_bit_weights(cpu, "RECOMMENDED-CPU-W4A8"), _four_bit_weights(npu, "RECOMMENDED-NPU-W4A8")
    return (
        (cpu_w4, "RECOMMENDED-CPU with int4 weights, one scale and one zero point for each output channel"),
        (_with_eight_bits(cpu_w4), f"RECOMMENDED-CPU-W4A8 {_MIXED}"),
        (npu_w4, "RECOMMENDED-NPU with int4 weights per channel and int32 biases, without limits on fraction bits"),
        (_with_eight_bits(npu_w4, cross_layer), f"RECOMMENDED-NPU-W4A8 {_MIXED}"),
    )


def _other_targets(cpu: Recipe) -> Described:
    return (
        (
            _htp(cpu, "RECOMMENDED-HTP", DataType.UINT8),
            "best for Qualcomm's HTP without training: RECOMMENDED-CPU with every operator quantized",
        ),
        (
            _htp(cpu, "RECOMMENDED-HTP-16", DataType.UINT16),
            "RECOMMENDED-HTP with uint16 activations: more accurate, slower",
        ),
        (
            _tensorrt(cpu),
            "best for TensorRT without training: RECOMMENDED-CPU with symmetric int8 activations and float biases",
        ),
    )
