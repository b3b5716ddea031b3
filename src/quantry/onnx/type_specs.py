"""From the members of AMD Quark's type enumerations to tensor specifications."""

import enum

from quantry.errors import RecipeError
from quantry.recipe import DataType, PerBlock, TensorSpec

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
