"""Enumerations, where scripts for AMD Quark 0.10 and later look for them."""

from quantry.onnx.enums import (
    CalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
)

__all__ = [
    "CalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "Int16Method",
    "LayerWiseMethod",
    "PowerOfTwoMethod",
    "QuantFormat",
    "QuantType",
    "VitisQuantFormat",
    "VitisQuantType",
]
