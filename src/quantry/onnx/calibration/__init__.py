"""Calibration methods and data readers, where AMD Quark has them."""

from quantry.onnx.calibration.methods import (
    CalibrationMethod,
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)
from quantry.onnx.data_readers import CachedDataReader, CalibrationDataReader, PathDataReader, RandomDataReader

__all__ = [
    "CachedDataReader",
    "CalibrationDataReader",
    "CalibrationMethod",
    "ExtendedCalibrationMethod",
    "Int16Method",
    "LayerWiseMethod",
    "PathDataReader",
    "PowerOfTwoMethod",
    "RandomDataReader",
]
