"""The enumerations of AMD Quark, vai_q_onnx and onnxruntime.quantization, under their own names and values.

Members are matched by the name of their type and their own name, so that a script may as well pass the members of
``onnxruntime.quantization``; that library is not imported for it.

From the members of AMD Quark's calibration enumerations to calibration methods.

From the members of AMD Quark's type enumerations to tensor specifications.
"""

import enum
from typing import TypeAlias

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import (
    DataType,
    Entropy,
    LayerWisePercentile,
    Method,
    MinMax,
    MinMSE,
    NonOverflow,
    PerBlock,
    Percentile,
    TensorSpec,
)


class PowerOfTwoMethod(enum.Enum):
    """Calibration with scales that are powers of two."""

    NonOverflow = 0
    MinMSE = 1


class Int16Method(enum.Enum):
    """Calibration with scales ``M / 2**N`` of a 16-bit M."""

    MinMax = 0


class LayerWiseMethod(enum.Enum):
    """Calibration that chooses the best percentile tensor by tensor."""

    LayerWisePercentile = 0


class ExtendedCalibrationMethod(enum.Enum):
    """MinMSE with float scales."""

    MinMSE = 0


class CalibrationMethod(enum.Enum):
    """Calibration with float scales, as onnxruntime names it."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class QuantFormat(enum.Enum):
    """How onnxruntime writes a quantized model."""

    QOperator = 0
    QDQ = 1


class ExtendedQuantFormat(enum.Enum):
    """How AMD Quark writes types that standard Q/DQ did not have."""

    QOperator = 0
    QDQ = 1


class VitisQuantFormat(enum.Enum):
    """How vai_q_onnx writes a quantized model."""

    QDQ = 2
    FixNeuron = 3
    BFPFixNeuron = 4
    MXFixNeuron = 5


class QuantType(enum.Enum):
    """Types of onnxruntime."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6


class ExtendedQuantType(enum.Enum):
    """Types of AMD Quark."""

    QInt8 = 1
    QUInt8 = 2
    QInt16 = 3
    QUInt16 = 4
    QInt32 = 5
    QUInt32 = 6
    QFloat16 = 7
    QBFloat16 = 8
    QBFP = 9
    QMX = 10


VitisQuantType = ExtendedQuantType


class CalibMethod(enum.Enum):
    """Calibration method of one `QTensorConfig`."""

    MinMax = "MinMax"
    MinMSE = "MinMSE"
    Percentile = "Percentile"
    Entropy = "Entropy"
    LayerwisePercentile = "LayerwisePercentile"
    Distribution = "Distribution"


class ScaleType(enum.Enum):
    """Kind of scale of one `QTensorConfig`."""

    Float32 = "Float32"
    PowerOf2 = "PowerOf2"
    Int16 = "Int16"


class QuantGranularity(enum.Enum):
    """How many scales one tensor has."""

    Tensor = "Tensor"
    Channel = "Channel"
    Group = "Group"


AnyMethod: TypeAlias = (
    PowerOfTwoMethod | Int16Method | LayerWiseMethod | ExtendedCalibrationMethod | CalibrationMethod | CalibMethod
)
AnyFormat: TypeAlias = QuantFormat | ExtendedQuantFormat | VitisQuantFormat
AnyType: TypeAlias = QuantType | ExtendedQuantType

METHODS: tuple[type[enum.Enum], ...] = (
    PowerOfTwoMethod,
    CalibrationMethod,
    LayerWiseMethod,
    ExtendedCalibrationMethod,
    Int16Method,
)
FORMATS: tuple[type[enum.Enum], ...] = (QuantFormat, ExtendedQuantFormat, VitisQuantFormat)
TYPES: tuple[type[enum.Enum], ...] = (QuantType, ExtendedQuantType)

_OTHER_NAMES = {"VitisQuantType": ExtendedQuantType}


def own_member(value: object, accepted: tuple[type[enum.Enum], ...], where: str) -> enum.Enum:
    """Return our member of the same type name and name.

    Args:
        value: A member of one of ours, or of another library's enumeration of the same name.
        accepted: The enumerations that are meant.
        where: The field, for messages.

    Raises:
        RecipeError: The value is no such member.

    Example:
        >>> own_member(QuantType.QInt8, TYPES, "activation_type").name
        'QInt8'
    """
    known = {kind.__name__: kind for kind in accepted}
    known |= {name: kind for name, kind in _OTHER_NAMES.items() if kind in accepted}
    if isinstance(value, enum.Enum):
        kind = known.get(type(value).__name__)
        if kind is not None and value.name in kind.__members__:
            return kind[value.name]
    else:
        raise _no_member(value, accepted, where)
    spellings = [f"{name}.{member}" for name, kind in known.items() for member in kind.__members__]
    raise RecipeError(
        f"{where} must be one of {', '.join(spellings)}, got {value!r}{nearest_spelling(str(value), spellings)}"
    )


def _no_member(value: object, accepted: tuple[type[enum.Enum], ...], where: str) -> RecipeError:
    """Return the error of a value that is no member at all, such as the text 'QInt8', with the member it may mean."""
    members = [member for kind in accepted for member in kind]
    wanted = str(value).rpartition(".")[2].casefold()
    meant = next((member for member in members if member.name.casefold() == wanted), members[0])
    kind = type(meant).__name__
    article = "an" if kind[0] in "AEIOU" else "a"
    return RecipeError(
        f"{where} must be {article} {kind} such as {meant}, got {value!r} of type {type(value).__name__}"
    )


_METHODS: dict[enum.Enum, Method] = {
    PowerOfTwoMethod.NonOverflow: NonOverflow(),
    PowerOfTwoMethod.MinMSE: MinMSE(),
    CalibrationMethod.MinMax: MinMax(),
    CalibrationMethod.Entropy: Entropy(),
    CalibrationMethod.Percentile: Percentile(),
    LayerWiseMethod.LayerWisePercentile: LayerWisePercentile(),
    ExtendedCalibrationMethod.MinMSE: MinMSE(),
    CalibMethod.MinMax: MinMax(),
    CalibMethod.MinMSE: MinMSE(),
    CalibMethod.Percentile: Percentile(),
    CalibMethod.Entropy: Entropy(),
    CalibMethod.LayerwisePercentile: LayerWisePercentile(),
}
_NEAREST = {
    "Distribution": "it is for float8 only and is not there; the nearest is CalibrationMethod.Percentile",
    "MinMax": "scales are float32 or powers of two, not M / 2**N; the nearest is CalibrationMethod.MinMax",
}


def method_of(member: enum.Enum, where: str) -> Method:
    """Return the calibration method that a member stands for.

    Args:
        member: One of our members.
        where: The field, for messages.

    Raises:
        RecipeError: There is no such method here; the message has the nearest.
    """
    method = _METHODS.get(member)
    if method is None:
        raise RecipeError(f"{where} cannot be {member}: {_NEAREST[member.name]}")
    return method


_SPECS = {
    "QInt4": TensorSpec(DataType.INT4),
    "QUInt4": TensorSpec(DataType.UINT4),
    "QInt8": TensorSpec(DataType.INT8),
    "QUInt8": TensorSpec(DataType.UINT8),
    "QInt16": TensorSpec(DataType.INT16),
    "QUInt16": TensorSpec(DataType.UINT16),
    "QInt32": TensorSpec(DataType.INT32),
    "QUInt32": TensorSpec(DataType.UINT32),
    "QFloat16": TensorSpec(DataType.FLOAT16),
    "QBFloat16": TensorSpec(DataType.BFLOAT16),
    "QBFP": TensorSpec(DataType.BFP16, granularity=PerBlock()),
    "QMX": TensorSpec(DataType.MXINT8, granularity=PerBlock()),
}


def spec_of(member: enum.Enum, where: str) -> TensorSpec:
    """Return the specification that a type stands for, symmetric and with one scale.

    Args:
        member: A member of QuantType or ExtendedQuantType.
        where: The field, for messages.

    Raises:
        RecipeError: The type is not there.
    """
    spec = _SPECS.get(member.name)
    if spec is None:
        raise RecipeError(
            f"{where} cannot be {member}: float8 with a scale is not there; the nearest is ExtendedQuantType.QMX with "
            "MXAttributes {'element_dtype': 'fp8_e4m3'}"
        )
    return spec
