"""Runs the float model once over the calibration data; keeps statistics that serve every calibration method."""

from quantry.observe.stage import observe
from quantry.observe.statistics import Needs, Statistics

__all__ = [
    "Needs",
    "Statistics",
    "observe",
]
