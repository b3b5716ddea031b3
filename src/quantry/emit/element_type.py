"""Our data types in the words of ONNX."""

import ml_dtypes
import numpy as np
import onnx_ir as ir

from quantry.recipe import DataType

ONNX_TYPE: dict[DataType, ir.DataType] = {
    DataType.INT4: ir.DataType.INT4,
    DataType.UINT4: ir.DataType.UINT4,
    DataType.INT8: ir.DataType.INT8,
    DataType.UINT8: ir.DataType.UINT8,
    DataType.INT16: ir.DataType.INT16,
    DataType.UINT16: ir.DataType.UINT16,
    DataType.INT32: ir.DataType.INT32,
    DataType.UINT32: ir.DataType.UINT32,
    DataType.FLOAT16: ir.DataType.FLOAT16,
    DataType.BFLOAT16: ir.DataType.BFLOAT16,
}

FIRST_OPSET: dict[DataType, int] = {
    DataType.INT4: 21,
    DataType.UINT4: 21,
    DataType.INT16: 21,
    DataType.UINT16: 21,
}
"""First opset whose QuantizeLinear carries the type, where that is later than the one of int8 per axis."""

GROUPS_SINCE_OPSET = 21
"""First opset whose DequantizeLinear has a scale for each group of values."""

WIDE_TYPES_SINCE_OPSET: dict[ir.DataType, int] = {ONNX_TYPE[dtype]: opset for dtype, opset in FIRST_OPSET.items()}
"""The same by ONNX type."""


def as_tensor(values: np.ndarray, dtype: DataType, name: str) -> ir.TensorProtocol:
    """Return integers as an ONNX tensor.

    Args:
        values: Integers within the type's range, in any container.
        dtype: Type of the tensor.
        name: Its name.

    Returns:
        The tensor.
    """
    container = {DataType.INT4: ml_dtypes.int4, DataType.UINT4: ml_dtypes.uint4}.get(dtype, np.dtype(dtype.value))
    return ir.Tensor(np.ascontiguousarray(values).reshape(values.shape).astype(container), ONNX_TYPE[dtype], name=name)
