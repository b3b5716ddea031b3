"""AMD Ryzen AI: power-of-two int8 on the NPU through the Vitis AI execution provider."""

from quantry.recipe import DataType
from quantry.targets.rules import (
    Centred,
    Closed,
    FloatType,
    Granularity,
    NoOperators,
    NoOverflow,
    PowersOfTwo,
    ShiftLimits,
    StaticFormats,
    StaticShapes,
    Types,
    WrittenAttributes,
)
from quantry.targets.target import Target

_QUARK = "AMD Quark, SimulateDPU and NPULimitationCheck"
_ELSEWHERE = "the node runs on the CPU"

_ARITHMETIC = (
    StaticFormats(
        again="quantize the float model with XINT8 or recommended-npu", source=_QUARK, consequence=_ELSEWHERE
    ),
    Types(
        activation=(DataType.INT8, DataType.UINT8),
        weight=(DataType.INT8,),
        bias=(DataType.INT8,),
        source=_QUARK,
        consequence=_ELSEWHERE,
    ),
    Granularity(source=_QUARK, consequence=_ELSEWHERE),
    PowersOfTwo(source=_QUARK, consequence="the NPU shifts by a whole number of bits, so results differ"),
    Centred(source=_QUARK, consequence="the NPU has no zero points, so results differ"),
    Closed(source=_QUARK, consequence=_ELSEWHERE),
    ShiftLimits(source=_QUARK, consequence="the shifter saturates, so results differ"),
    NoOverflow(source=_QUARK, consequence="sums wrap around silently"),
)

NPU_INT8 = Target(
    name="npu-int8",
    summary="any integer NPU with power-of-two int8: the rules of its arithmetic only",
    recommended=("RECOMMENDED-NPU",),
    rules=_ARITHMETIC,
    float_elsewhere=True,
)

VITISAI = Target(
    name="vitisai",
    summary="AMD Ryzen AI NPU: power-of-two int8 through the Vitis AI execution provider",
    recommended=("RECOMMENDED-NPU",),
    rules=(
        *_ARITHMETIC,
        StaticShapes(source="RyzenAI-SW issue 208", consequence="the compiler leaves the graph on the CPU"),
        WrittenAttributes(
            operators=("Conv", "ConvTranspose"),
            attributes=("kernel_shape", "strides", "pads", "dilations", "group"),
            source="onnxsim PR 1404, measured on Strix Halo with Ryzen AI 1.8",
            consequence="the compiler aborts the process (XIR conv2d stride REQUIRED)",
        ),
        NoOperators(
            operators=("If", "Loop", "Scan", "LSTM", "GRU", "RNN"),
            constant_condition=True,
            source="RyzenAI-SW issues 310, 321, 322",
            consequence="the compiler rejects the model or leaves it on the CPU",
        ),
        FloatType(
            refused=(DataType.BFLOAT16,), source="RyzenAI-SW issue 374", consequence="the compiler rejects the model"
        ),
    ),
    float_elsewhere=True,
)
