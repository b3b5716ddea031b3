"""The enumerations and observers of Quark for PyTorch, and why some members are not supported.

Observers hold no data: they are names that choose a calibration method. Activations are observed once for all methods,
by the stages that also quantize ONNX models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import DataType, Entropy, Method, MinMax, MinMSE, Percentile
from quantry.recipe.checked import KnownArguments

QuantizationMode = Enum("QuantizationMode", {"eager_mode": 1, "fx_graph_mode": 2})
Dtype = Enum(
    "Dtype",
    {
        "int8": "int8",
        "uint8": "uint8",
        "int16": "int16",
        "uint16": "uint16",
        "int32": "int32",
        "int4": "int4",
        "uint4": "uint4",
        "int3": "int3",
        "int2": "int2",
        "uint2": "uint2",
        "bfloat16": "bfloat16",
        "float16": "float16",
        "fp8_e5m2": "fp8_e5m2",
        "fp8_e4m3": "fp8_e4m3",
        "fp8_e5m3": "fp8_e5m3",
        "fp6_e3m2": "fp6_e3m2",
        "fp6_e2m3": "fp6_e2m3",
        "fp4": "fp4",
        "mx": "mx",
        "mx6": "mx6",
        "mx9": "mx9",
        "bfp16": "bfp16",
    },
)
QSchemeType = Enum(
    "QSchemeType",
    {"per_tensor": "per_tensor", "per_channel": "per_channel", "per_group": "per_group", "per_block": "per_block"},
)
ScaleType = Enum(
    "ScaleType",
    {
        "float": "float",
        "pof2": "pof2",
        "float32": "float32",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "float8_e5m3": "float8_e5m3",
        "float8_e8m0fnu": "float8_e8m0fnu",
    },
)
ZeroPointType = Enum("ZeroPointType", {"int32": "int32", "float32": "float32"})
RoundType = Enum("RoundType", {"round": 2, "floor": 3, "half_even": 8})
QuantFlow = Enum("QuantFlow", {"standard": "standard", "file2file": "file2file", "per_block": "per_block"})
DeviceType = Enum("DeviceType", {"CPU": "cpu", "IPU": "ipu"})

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

_BLOCKS = "the shared exponent of a block is computed at run time; use quantry.onnx, which needs no training for it"
_NARROW = "ONNX has no integers of fewer than four bits; use int4"
_FLOATS = "no operator of the exported ONNX computes with it; use float16, bfloat16 or int8"
_LANGUAGE = "it is for language models, which are never exported to ONNX; use QuantFlow.standard"
_GROUPS = "integer runtimes have one scale per channel or tensor; use per_channel"
_ROUNDING = "QuantizeLinear rounds halves to even, and training must do the same as deployment; use half_even"
_SCALES = "ONNX stores scales as float32; use ScaleType.float, or pof2 for powers of two"

REFUSED: Mapping[Enum, str] = {
    QuantizationMode.eager_mode: "the graph is captured and your modules stay as they are; use fx_graph_mode",
    **dict.fromkeys((Dtype.int3, Dtype.int2, Dtype.uint2), _NARROW),
    **dict.fromkeys((Dtype.fp8_e5m2, Dtype.fp8_e4m3, Dtype.fp8_e5m3, Dtype.fp6_e3m2, Dtype.fp6_e2m3), _FLOATS),
    Dtype.fp4: _FLOATS,
    **dict.fromkeys((Dtype.mx, Dtype.mx6, Dtype.mx9, Dtype.bfp16), _BLOCKS),
    **dict.fromkeys((QSchemeType.per_group, QSchemeType.per_block), _GROUPS),
    **dict.fromkeys((ScaleType.float16, ScaleType.bfloat16, ScaleType.float8_e5m3, ScaleType.float8_e8m0fnu), _SCALES),
    ZeroPointType.float32: "ONNX stores zero points as integers of the tensor's type; use ZeroPointType.int32",
    **dict.fromkeys((RoundType.round, RoundType.floor), _ROUNDING),
    **dict.fromkeys((QuantFlow.file2file, QuantFlow.per_block), _LANGUAGE),
}
"""Members that are known but not supported, and why."""


def check_member(member: object, kind: type[Enum], option: str) -> None:
    """Reject values that are not members, and members that are not supported.

    Args:
        member: The value.
        kind: The enumeration.
        option: Name of the field.

    Raises:
        RecipeError: The value cannot be used; the message says why.
    """
    if not isinstance(member, kind):
        names = ", ".join(entry.name for entry in kind if entry not in REFUSED)
        raise RecipeError(f"{option} must be a {kind.__name__} ({names}), got {member!r}")
    if member in REFUSED:
        raise RecipeError(f"{option} cannot be {kind.__name__}.{member.name}: {REFUSED[member]}")


TQTThresholdInitMeth = Enum("TQTThresholdInitMeth", {"_MAX": "_MAX", "_3SD": "_3SD", "_KL_J": "_KL_J"})
# Three standard deviations clip a few values, as the smallest squared error does; training moves the threshold anyway.
_THRESHOLDS: Mapping[TQTThresholdInitMeth, Method] = {
    TQTThresholdInitMeth._MAX: MinMax(),
    TQTThresholdInitMeth._3SD: MinMSE(),
    TQTThresholdInitMeth._KL_J: Entropy(),
}


@dataclass(frozen=True)
class TQTSpec(KnownArguments):
    """Trains the logarithm of scales (https://arxiv.org/abs/1903.08066).

    Attributes:
        threshold_init_meth: Where the threshold starts: ``_MAX`` at the largest value, ``_3SD`` at the smallest squared
            error, ``_KL_J`` where the distribution changes least. None takes the smallest squared error.
    """

    threshold_init_meth: TQTThresholdInitMeth | None = None

    def __post_init__(self) -> None:
        if self.threshold_init_meth is not None:
            check_member(self.threshold_init_meth, TQTThresholdInitMeth, "TQTSpec.threshold_init_meth")

    @property
    def method(self) -> Method | None:
        """The calibration method that finds the first threshold; None leaves it to the observer."""
        return None if self.threshold_init_meth is None else _THRESHOLDS[self.threshold_init_meth]


@dataclass(frozen=True)
class LSQSpec(KnownArguments):
    """Trains scales (https://arxiv.org/abs/1902.08153)."""


class _ObserverType(type):
    """Says that a quantizer which learns its scale is an observer of the kind that learns it.

    AMD's training scripts collect the parameters of their optimizer with ``isinstance(module, TQTObserver)``.
    """

    learned: str

    def __instancecheck__(cls, instance: Any) -> bool:
        gradient = getattr(instance, "gradient", None)
        return super().__instancecheck__(instance) or bool(
            cls.learned and getattr(gradient, "value", "") == cls.learned
        )


class ObserverBase(metaclass=_ObserverType):
    """Base of all observers.

    Attributes:
        scheme: Number of scales of the tensor; None fits any.
        power_of_two: Whether scales are powers of two even if the specification has float scales.
        method: The calibration method.
        learned: How training learns the scale: "tqt", "lsq" or empty.
        refusal: Why it is not supported; empty if it is.
    """

    scheme: QSchemeType | None = QSchemeType.per_tensor
    power_of_two: bool = False
    method: Method = MinMax()
    learned: str = ""
    refusal: str = ""


def _observer(
    name: str,
    doc: str,
    *,
    scheme: QSchemeType | None = QSchemeType.per_tensor,
    method: Method | None = None,
    **flags: bool | str,
) -> type[ObserverBase]:
    """Return an observer class; it is only a name for its attributes."""
    attributes = {"__doc__": doc, "__module__": __name__, "scheme": scheme, "method": method or MinMax(), **flags}
    observer = _ObserverType(name, (ObserverBase,), attributes)
    assert issubclass(observer, ObserverBase)
    return observer


_CHANNEL = QSchemeType.per_channel

PlaceholderObserver = _observer("PlaceholderObserver", "Needs no data: for types without a scale.", scheme=None)
PerTensorMinMaxObserver = _observer("PerTensorMinMaxObserver", "The smallest and the largest value.")
PerChannelMinMaxObserver = _observer(
    "PerChannelMinMaxObserver", "The smallest and the largest value of each channel.", scheme=_CHANNEL
)
# The histogram here is fine and exact from the start, so both observers and the MSE observer are the same.
PerTensorHistogramObserver = _observer(
    "PerTensorHistogramObserver", "The range with the smallest squared error over the histogram.", method=MinMSE()
)
PerTensorHistogramObserverPro = _observer(
    "PerTensorHistogramObserverPro", "The same as `PerTensorHistogramObserver`.", method=MinMSE()
)
PerTensorMSEObserver = _observer("PerTensorMSEObserver", "The range with the smallest squared error.", method=MinMSE())
PerTensorPercentileObserver = _observer(
    "PerTensorPercentileObserver", "Clips the rarest largest values.", method=Percentile(99.99999999)
)
PerTensorPowOf2MinMaxObserver = _observer(
    "PerTensorPowOf2MinMaxObserver", "The power of two nearest to the scale of the extremes.", power_of_two=True
)
PerTensorPowOf2MinMSEObserver = _observer(
    "PerTensorPowOf2MinMSEObserver",
    "The power of two with the smallest squared error.",
    method=MinMSE(),
    power_of_two=True,
)
PerChannelPowOf2MinMaxObserver = _observer(
    "PerChannelPowOf2MinMaxObserver",
    "The power of two nearest to the scale of the extremes, per channel.",
    scheme=_CHANNEL,
    power_of_two=True,
)
PerChannelPowOf2MinMSEObserver = _observer(
    "PerChannelPowOf2MinMSEObserver",
    "The power of two with the smallest squared error, per channel.",
    scheme=_CHANNEL,
    method=MinMSE(),
    power_of_two=True,
)
LSQObserver = _observer(
    "LSQObserver",
    "A scale that training learns; it starts at the smallest squared error.",
    scheme=None,
    method=MinMSE(),
    learned="lsq",
)
TQTObserver = _observer(
    "TQTObserver",
    "A power-of-two scale that training learns; it starts at the smallest squared error.",
    scheme=None,
    method=MinMSE(),
    power_of_two=True,
    learned="tqt",
)
_NO_BLOCKS = "block formats need no observer; use quantry.onnx with MX types"
PerGroupMinMaxObserver = _observer(
    "PerGroupMinMaxObserver",
    "Not supported.",
    scheme=QSchemeType.per_group,
    refusal="integer runtimes have one scale per channel or tensor; use PerChannelMinMaxObserver",
)
PerBlockMXObserver = _observer("PerBlockMXObserver", "Not supported.", scheme=QSchemeType.per_block, refusal=_NO_BLOCKS)
PerBlockBFPObserver = _observer(
    "PerBlockBFPObserver", "Not supported.", scheme=QSchemeType.per_block, refusal=_NO_BLOCKS
)


def observer_named(name: str) -> type[ObserverBase]:
    """Return the observer of a name.

    Args:
        name: Its name.

    Raises:
        RecipeError: There is no such observer.
    """
    observers = {observer.__name__: observer for observer in ObserverBase.__subclasses__()}
    if not isinstance(name, str) or name not in observers:
        raise RecipeError(f"observer_cls must be an observer, got {name!r}{nearest_spelling(str(name), observers)}")
    return observers[name]
