"""The enumerations of AMD Quark, vai_q_onnx and onnxruntime.quantization, under their own names and values.

Members are matched by the name of their type and their own name, so that a script may as well pass the members of
``onnxruntime.quantization``; that library is not imported for it.
"""

import enum
from typing import TypeAlias

from quantry.errors import RecipeError, nearest_spelling


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
