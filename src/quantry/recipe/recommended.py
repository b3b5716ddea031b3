"""One recipe for each kind of target that puts together what helped on real models, for users who read nothing.

Both choose ranges by the error left behind the next function and round weights so that errors make up for each other,
biases included. Nothing is trained and no torch is needed: expect a few minutes on two cores for a
convolutional network of five million parameters and fifty images, in proportion to both.
"""

from dataclasses import replace

from quantry.recipe.equalization import SmoothQuant
from quantry.recipe.methods import MinMSE
from quantry.recipe.npu import NpuConversions
from quantry.recipe.options import EqualizeOptions
from quantry.recipe.recipe import Recipe
from quantry.recipe.tuning import Gptq, TuneOptions

_SAMPLES = 64
"""More samples hardly move means and Gram matrices, and cost time in proportion."""

_NPU_SUMMARY = (
    "best for NPUs without training: XINT8 that keeps Sigmoid, SmoothQuant where it pays, ranges judged behind the next "
    "function, GPTQ"
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
    return (
        (
            replace(
                npu,
                name="RECOMMENDED-NPU",
                # A network trained with Sigmoid loses more by HardSigmoid than by all of its rounding.
                prepare=replace(npu.prepare, npu=NpuConversions(sigmoid_to_hard_sigmoid=False)),
                equalize=replace(npu.equalize, smooth=SmoothQuant()),
                scale=replace(npu.scale, activation=MinMSE(behind=True)),
                tune=TuneOptions((Gptq(samples=_SAMPLES),)),
            ),
            _NPU_SUMMARY,
        ),
        (
            replace(
                cpu,
                name="RECOMMENDED-CPU",
                equalize=EqualizeOptions(smooth=SmoothQuant()),
                plan=replace(cpu.plan, float_residuals=True),
                scale=replace(cpu.scale, activation=MinMSE(behind=True)),
                tune=TuneOptions((Gptq(samples=_SAMPLES),)),
            ),
            _CPU_SUMMARY,
        ),
    )
