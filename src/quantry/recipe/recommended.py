"""One recipe for each kind of target that puts together what helped on real models, for users who read nothing.

All divide outlier channels where it pays, choose ranges by the error left behind the next function and round weights so
that errors make up for each other, biases included. Nothing is trained and no torch is needed: expect a few minutes on
two cores for a convolutional network of five million parameters and fifty images, in proportion to both.
"""

from dataclasses import replace

from quantry.recipe.bias import OwnBias
from quantry.recipe.data_type import DataType
from quantry.recipe.equalization import SmoothQuant
from quantry.recipe.methods import MinMSE
from quantry.recipe.mixing import LayerTarget, MixedPrecision, MixOptions, TensorShare
from quantry.recipe.npu import NpuConversions
from quantry.recipe.options import EqualizeOptions
from quantry.recipe.recipe import Recipe
from quantry.recipe.scale_kind import PowerOfTwoScale
from quantry.recipe.tensor_spec import TensorSpec
from quantry.recipe.tuning import Gptq, TuneOptions

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
