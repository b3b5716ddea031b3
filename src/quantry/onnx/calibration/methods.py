"""Enumerations of calibration methods, where AMD Quark has them."""

from quantry.onnx.enums import (
    CalibrationMethod,
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)

__all__ = ["CalibrationMethod", "ExtendedCalibrationMethod", "Int16Method", "LayerWiseMethod", "PowerOfTwoMethod"]
