"""Names of types, as AMD Quark 0.10 and later spell them; each is a `quantry.recipe.DataType`."""

from quantry.recipe import DataType

Int8 = DataType.INT8
UInt8 = DataType.UINT8
Int16 = DataType.INT16
UInt16 = DataType.UINT16
Int32 = DataType.INT32
UInt32 = DataType.UINT32
Float16 = DataType.FLOAT16
BFloat16 = DataType.BFLOAT16
BFP16 = DataType.BFP16

__all__ = [
    "BFP16",
    "BFloat16",
    "DataType",
    "Float16",
    "Int8",
    "Int16",
    "Int32",
    "UInt8",
    "UInt16",
    "UInt32",
]
