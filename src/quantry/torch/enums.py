"""The enumerations of Quark for PyTorch; members that cannot be honoured say why when they are used.

The observers of Quark for PyTorch: names that choose a calibration method.

They hold no data: activations are observed once for all methods, by the stages that serve ONNX models too.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe import DataType, Method, MinMax, MinMSE, Percentile
from quantry.recipe.checked import KnownArguments


class QuantizationMode(enum.Enum):
    """How a model is taken apart."""

    eager_mode = 1
    fx_graph_mode = 2


class Dtype(enum.Enum):
    """Number types."""

    int8 = "int8"
    uint8 = "uint8"
    int16 = "int16"
    uint16 = "uint16"
    int32 = "int32"
    int4 = "int4"
    uint4 = "uint4"
    int3 = "int3"
    int2 = "int2"
    uint2 = "uint2"
    bfloat16 = "bfloat16"
    float16 = "float16"
    fp8_e5m2 = "fp8_e5m2"
    fp8_e4m3 = "fp8_e4m3"
    fp8_e5m3 = "fp8_e5m3"
    fp6_e3m2 = "fp6_e3m2"
    fp6_e2m3 = "fp6_e2m3"
    fp4 = "fp4"
    mx = "mx"
    mx6 = "mx6"
    mx9 = "mx9"
    bfp16 = "bfp16"


class QSchemeType(enum.Enum):
    """How many scales a tensor has."""

    per_tensor = "per_tensor"
    per_channel = "per_channel"
    per_group = "per_group"
    per_block = "per_block"


class ScaleType(enum.Enum):
    """Which numbers a scale may be."""

    float = "float"
    pof2 = "pof2"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float8_e5m3 = "float8_e5m3"
    float8_e8m0fnu = "float8_e8m0fnu"


class ZeroPointType(enum.Enum):
    """Type of the zero point."""

    int32 = "int32"
    float32 = "float32"


class RoundType(enum.Enum):
    """How halves are rounded."""

    round = 2
    floor = 3
    half_even = 8


class QuantFlow(enum.Enum):
    """In which pieces a model is worked on."""

    standard = "standard"
    file2file = "file2file"
    per_block = "per_block"


class DeviceType(enum.Enum):
    """What the model is deployed on."""

    CPU = "cpu"
    IPU = "ipu"


DATA_TYPES: Mapping[Dtype, DataType] = {
    Dtype.int8: DataType.INT8,
    Dtype.uint8: DataType.UINT8,
    Dtype.int16: DataType.INT16,
    Dtype.uint16: DataType.UINT16,
    Dtype.int32: DataType.INT32,
    Dtype.int4: DataType.INT4,
    Dtype.uint4: DataType.UINT4,
    Dtype.bfloat16: DataType.BFLOAT16,
    Dtype.float16: DataType.FLOAT16,
}
"""The types that can be trained and exported."""

_BLOCKS = (
    "values of a block share an exponent that is found at run time; use quantry.onnx, which needs no training for it"
)
_NARROW = "ONNX has no integers of fewer than four bits; use int4"
_FLOATS = "no operator of the exported ONNX computes with it; use float16, bfloat16 or int8"
_LANGUAGE = "it serves language models that are never exported to ONNX; use QuantFlow.standard"

REFUSED: Mapping[enum.Enum, str] = {
    QuantizationMode.eager_mode: (
        "modules are not replaced one by one here: the graph is captured, and your code stays; use fx_graph_mode"
    ),
    Dtype.int3: _NARROW,
    Dtype.int2: _NARROW,
    Dtype.uint2: _NARROW,
    **dict.fromkeys((Dtype.fp8_e5m2, Dtype.fp8_e4m3, Dtype.fp8_e5m3, Dtype.fp6_e3m2, Dtype.fp6_e2m3), _FLOATS),
    Dtype.fp4: _FLOATS,
    **dict.fromkeys((Dtype.mx, Dtype.mx6, Dtype.mx9, Dtype.bfp16), _BLOCKS),
    QSchemeType.per_group: "integer runtimes multiply with one scale for a channel or a tensor; use per_channel",
    QSchemeType.per_block: "integer runtimes multiply with one scale for a channel or a tensor; use per_channel",
    **dict.fromkeys(
        (ScaleType.float16, ScaleType.bfloat16, ScaleType.float8_e5m3, ScaleType.float8_e8m0fnu),
        "scales are stored as float32 in ONNX; use ScaleType.float, or pof2 for powers of two",
    ),
    ZeroPointType.float32: "ONNX stores zero points as integers of the tensor's type; use ZeroPointType.int32",
    RoundType.round: "QuantizeLinear rounds halves to even, and training must do what is deployed; use half_even",
    RoundType.floor: "QuantizeLinear rounds halves to even, and training must do what is deployed; use half_even",
    QuantFlow.file2file: _LANGUAGE,
    QuantFlow.per_block: _LANGUAGE,
}
"""Members that are known and not honoured, with the reason."""


def check_member(member: object, kind: type[enum.Enum], where: str) -> None:
    """Refuse what is no member, and members that cannot be honoured.

    Args:
        member: What was given.
        kind: The enumeration.
        where: Name of the field.

    Raises:
        RecipeError: It cannot be used; the message has the reason.
    """
    if not isinstance(member, kind):
        names = ", ".join(known.name for known in kind if known not in REFUSED)
        raise RecipeError(f"{where} must be a {kind.__name__} ({names}), got {member!r}")
    if member in REFUSED:
        raise RecipeError(f"{where} cannot be {kind.__name__}.{member.name}: {REFUSED[member]}")


@dataclass(frozen=True)
class TQTSpec(KnownArguments):
    """Asks for scales that training learns by their logarithm (https://arxiv.org/abs/1903.08066)."""


@dataclass(frozen=True)
class LSQSpec(KnownArguments):
    """Asks for scales that training learns themselves (https://arxiv.org/abs/1902.08153)."""


class ObserverBase:
    """What all observers say.

    Attributes:
        scheme: How many scales the tensor has; None fits any.
        power_of_two: Whether the scale is a power of two whatever the specification says.
        method: The calibration method.
        learned: Whether training learns the scale: "tqt", "lsq" or empty.
        refusal: Why it cannot be used; empty where it can.
    """

    scheme: QSchemeType | None = QSchemeType.per_tensor
    power_of_two: bool = False
    method: Method = MinMax()
    learned: str = ""
    refusal: str = ""


class PlaceholderObserver(ObserverBase):
    """Needs no data: for types without a scale."""

    scheme = None


class PerTensorMinMaxObserver(ObserverBase):
    """The smallest and the largest value."""


class PerChannelMinMaxObserver(ObserverBase):
    """The smallest and the largest value of each channel."""

    scheme = QSchemeType.per_channel


class PerTensorHistogramObserver(ObserverBase):
    """The range with the least squared error over the histogram."""

    method = MinMSE()


class PerTensorHistogramObserverPro(PerTensorHistogramObserver):
    """The same as `PerTensorHistogramObserver`: the histogram here is fine and exact from the start."""


class PerTensorMSEObserver(ObserverBase):
    """The range with the least squared error."""

    method = MinMSE()


class PerTensorPercentileObserver(ObserverBase):
    """All but the rarest largest values."""

    method = Percentile(99.99999999)


class PerTensorPowOf2MinMaxObserver(ObserverBase):
    """The power of two next to the scale of the extremes."""

    power_of_two = True


class PerTensorPowOf2MinMSEObserver(ObserverBase):
    """The power of two with the least squared error."""

    power_of_two = True
    method = MinMSE()


class PerChannelPowOf2MinMaxObserver(PerTensorPowOf2MinMaxObserver):
    """The power of two next to the scale of the extremes, for each channel."""

    scheme = QSchemeType.per_channel


class PerChannelPowOf2MinMSEObserver(PerTensorPowOf2MinMSEObserver):
    """The power of two with the least squared error, for each channel."""

    scheme = QSchemeType.per_channel


class LSQObserver(ObserverBase):
    """A scale that training learns; it starts at the least squared error."""

    scheme = None
    method = MinMSE()
    learned = "lsq"


class TQTObserver(ObserverBase):
    """A power-of-two scale that training learns; it starts at the least squared error."""

    scheme = None
    power_of_two = True
    method = MinMSE()
    learned = "tqt"


class PerGroupMinMaxObserver(ObserverBase):
    """Known, and refused."""

    scheme = QSchemeType.per_group
    refusal = "integer runtimes multiply with one scale for a channel or a tensor; use PerChannelMinMaxObserver"


class PerBlockMXObserver(ObserverBase):
    """Known, and refused."""

    scheme = QSchemeType.per_block
    refusal = "block formats are found at run time and need no observer here; use quantry.onnx with MX types"


class PerBlockBFPObserver(PerBlockMXObserver):
    """Known, and refused."""
