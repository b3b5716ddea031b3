"""The enumerations of AMD Quark, vai_q_onnx and onnxruntime.quantization, and what each member means in a recipe.

Names and values are theirs. Members are matched by the name of their type and their own name, so scripts may also pass
the members of ``onnxruntime.quantization``; that library does not have to be imported for it.
"""

from enum import Enum
from typing import TypeAlias

from quantry.errors import OptionError, RecipeError, nearest_spelling
from quantry.recipe import (
    DataType,
    Distribution,
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

# Calibration methods of a QuantizationConfig: power-of-two scales, scales M / 2**N with a 16-bit M, the best percentile
# of each tensor, MinMSE with float scales, and onnxruntime's methods with float scales.
PowerOfTwoMethod = Enum("PowerOfTwoMethod", {"NonOverflow": 0, "MinMSE": 1})
Int16Method = Enum("Int16Method", {"MinMax": 0})
LayerWiseMethod = Enum("LayerWiseMethod", {"LayerWisePercentile": 0})
ExtendedCalibrationMethod = Enum("ExtendedCalibrationMethod", {"MinMSE": 0})
CalibrationMethod = Enum("CalibrationMethod", {"MinMax": 0, "Entropy": 1, "Percentile": 2, "Distribution": 3})

# Formats: onnxruntime's, AMD Quark's for types that standard Q/DQ did not have, and vai_q_onnx's.
QuantFormat = Enum("QuantFormat", {"QOperator": 0, "QDQ": 1})
ExtendedQuantFormat = Enum("ExtendedQuantFormat", {"QOperator": 0, "QDQ": 1})
VitisQuantFormat = Enum("VitisQuantFormat", {"QDQ": 2, "FixNeuron": 3, "BFPFixNeuron": 4, "MXFixNeuron": 5})

# Number types: onnxruntime's and AMD Quark's. vai_q_onnx calls the latter VitisQuantType.
QuantType = Enum(
    "QuantType",
    {"QInt8": 0, "QUInt8": 1, "QFLOAT8E4M3FN": 2, "QInt16": 3, "QUInt16": 4, "QInt4": 5, "QUInt4": 6},
)
ExtendedQuantType = Enum(
    "ExtendedQuantType",
    {
        "QInt8": 1,
        "QUInt8": 2,
        "QInt16": 3,
        "QUInt16": 4,
        "QInt32": 5,
        "QUInt32": 6,
        "QFloat16": 7,
        "QBFloat16": 8,
        "QBFP": 9,
        "QMX": 10,
    },
)
VitisQuantType = ExtendedQuantType

# Calibration method, kind of scale and number of scales of a QTensorConfig.
CalibMethod = Enum(
    "CalibMethod",
    {
        "MinMax": "MinMax",
        "MinMSE": "MinMSE",
        "Percentile": "Percentile",
        "Entropy": "Entropy",
        "LayerwisePercentile": "LayerwisePercentile",
        "Distribution": "Distribution",
    },
)
ScaleType = Enum("ScaleType", {"Float32": "Float32", "PowerOf2": "PowerOf2", "Int16": "Int16"})
QuantGranularity = Enum("QuantGranularity", {"Tensor": "Tensor", "Channel": "Channel", "Group": "Group"})

AnyMethod: TypeAlias = (
    PowerOfTwoMethod | Int16Method | LayerWiseMethod | ExtendedCalibrationMethod | CalibrationMethod | CalibMethod
)
AnyFormat: TypeAlias = QuantFormat | ExtendedQuantFormat | VitisQuantFormat
AnyType: TypeAlias = QuantType | ExtendedQuantType

METHODS: tuple[type[Enum], ...] = (
    PowerOfTwoMethod,
    CalibrationMethod,
    LayerWiseMethod,
    ExtendedCalibrationMethod,
    Int16Method,
)
FORMATS: tuple[type[Enum], ...] = (QuantFormat, ExtendedQuantFormat, VitisQuantFormat)
TYPES: tuple[type[Enum], ...] = (QuantType, ExtendedQuantType)
ENUMERATIONS: tuple[type[Enum], ...] = (*METHODS, *FORMATS, *TYPES, CalibMethod, ScaleType, QuantGranularity)

_METHODS: dict[Enum, Method] = {
    PowerOfTwoMethod.NonOverflow: NonOverflow(),
    PowerOfTwoMethod.MinMSE: MinMSE(),
    CalibrationMethod.MinMax: MinMax(),
    CalibrationMethod.Entropy: Entropy(),
    CalibrationMethod.Percentile: Percentile(),
    CalibrationMethod.Distribution: Distribution(),
    LayerWiseMethod.LayerWisePercentile: LayerWisePercentile(),
    ExtendedCalibrationMethod.MinMSE: MinMSE(),
    CalibMethod.MinMax: MinMax(),
    CalibMethod.MinMSE: MinMSE(),
    CalibMethod.Percentile: Percentile(),
    CalibMethod.Distribution: Distribution(),
    CalibMethod.Entropy: Entropy(),
    CalibMethod.LayerwisePercentile: LayerWisePercentile(),
}
_NO_METHOD = {
    "MinMax": "scales are float32 or powers of two, not M / 2**N; the nearest is CalibrationMethod.MinMax",
}

_DATA_TYPES = {
    "QInt4": DataType.INT4,
    "QUInt4": DataType.UINT4,
    "QInt8": DataType.INT8,
    "QUInt8": DataType.UINT8,
    "QInt16": DataType.INT16,
    "QUInt16": DataType.UINT16,
    "QInt32": DataType.INT32,
    "QUInt32": DataType.UINT32,
    "QFLOAT8E4M3FN": DataType.FLOAT8E4M3FN,
    "QFloat16": DataType.FLOAT16,
    "QBFloat16": DataType.BFLOAT16,
    "QBFP": DataType.BFP16,
    "QMX": DataType.MXINT8,
}


def own_member(value: object, accepted: tuple[type[Enum], ...], option: str) -> Enum:
    """Return our member for a member of the same enumeration of any library.

    Args:
        value: A member of one of our enumerations, or of another library's enumeration of the same name.
        accepted: The enumerations to look in.
        option: The field, for messages.

    Raises:
        RecipeError: The value is not such a member.

    Example:
        >>> own_member(QuantType.QInt8, TYPES, "activation_type").name
        'QInt8'
    """
    kinds = {kind.__name__: kind for kind in accepted}
    if ExtendedQuantType in accepted:
        kinds["VitisQuantType"] = ExtendedQuantType
    if not isinstance(value, Enum):
        raise _not_a_member(value, accepted, option)
    kind = kinds.get(type(value).__name__)
    if kind is not None and value.name in kind.__members__:
        return kind[value.name]
    spellings = [f"{name}.{member}" for name, kind in kinds.items() for member in kind.__members__]
    raise OptionError(
        f"{option} must be one of {', '.join(spellings)}, got {value!r}{nearest_spelling(str(value), spellings)}"
    )


def _not_a_member(value: object, accepted: tuple[type[Enum], ...], option: str) -> RecipeError:
    """Return the error for a value that is not an enumeration member, such as 'QInt8', with the likely member."""
    members = [member for kind in accepted for member in kind]
    spelling = str(value).rpartition(".")[2].casefold()
    likely = next((member for member in members if member.name.casefold() == spelling), members[0])
    kind = type(likely).__name__
    article = "an" if kind[0] in "AEIOU" else "a"
    return OptionError(
        f"{option} must be {article} {kind} such as {likely}, got {value!r} of type {type(value).__name__}"
    )


def method_of(member: Enum, option: str) -> Method:
    """Return the calibration method of a member.

    Args:
        member: One of our members.
        option: The field, for messages.

    Raises:
        RecipeError: quantry does not have the method; the message names the nearest.
    """
    method = _METHODS.get(member)
    if method is None:
        raise OptionError(f"{option} cannot be {member}: {_NO_METHOD[member.name]}")
    return method


def spec_of(member: Enum, option: str) -> TensorSpec:
    """Return the symmetric per-tensor specification of a type.

    Args:
        member: A member of QuantType or ExtendedQuantType.
        option: The field, for messages.

    Raises:
        RecipeError: quantry does not have the type.
    """
    dtype = _DATA_TYPES.get(member.name)
    if dtype is None:
        raise OptionError(f"{option} cannot be {member}: quantry does not have the type")
    return TensorSpec(dtype, granularity=PerBlock()) if dtype.is_block else TensorSpec(dtype)


def type_of(dtype: DataType) -> AnyType:
    """Return the member for a type; onnxruntime's where it has one, and of block formats their family.

    Example:
        >>> type_of(DataType.MX6)
        <ExtendedQuantType.QBFP: 9>
    """
    if dtype.is_block:
        return ExtendedQuantType.QMX if dtype.value.startswith(("mxfp", "mxint")) else ExtendedQuantType.QBFP
    name = next(name for name, data_type in _DATA_TYPES.items() if data_type == dtype)
    return QuantType[name] if name in QuantType.__members__ else ExtendedQuantType[name]
