"""Runs the float model once over the calibration data; keeps statistics that serve every calibration method."""

from quantry.observe.calibration_data import CalibrationData
from quantry.observe.distribution import Distribution
from quantry.observe.image_folder import ImageFolder
from quantry.observe.image_options import ImageOptions
from quantry.observe.needs import Needs
from quantry.observe.open_data import calibration_data, pixel_doubts, pixel_notes
from quantry.observe.random_data import RandomData
from quantry.observe.sample_source import SampleSource
from quantry.observe.stage import observe
from quantry.observe.statistics import Statistics
from quantry.observe.tensor_stats import TensorStats

__all__ = [
    "CalibrationData",
    "Distribution",
    "ImageFolder",
    "ImageOptions",
    "Needs",
    "RandomData",
    "SampleSource",
    "Statistics",
    "TensorStats",
    "calibration_data",
    "observe",
    "pixel_doubts",
    "pixel_notes",
]
