"""Calibration data: sources, images, spooling, and checks that samples fit the model."""

from quantry.data.calibration_data import CalibrationData, SampleSource
from quantry.data.images import ImageFolder, ImageOptions
from quantry.data.open_data import calibration_data, pixel_doubts, pixel_notes
from quantry.data.random_data import RandomData

__all__ = [
    "CalibrationData",
    "ImageFolder",
    "ImageOptions",
    "RandomData",
    "SampleSource",
    "calibration_data",
    "pixel_doubts",
    "pixel_notes",
]
