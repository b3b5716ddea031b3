"""Enumerations, where scripts for AMD Quark up to 0.9 look for them."""

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
