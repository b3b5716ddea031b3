"""Stage 3: run the float model over the calibration data and collect statistics for every calibration method."""

from quantry.observe.stage import observe
from quantry.observe.statistics import Needs, Statistics

__all__ = [
    "Needs",
    "Statistics",
    "observe",
]
