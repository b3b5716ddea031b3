"""Stage 3: run the float model over the calibration data and collect statistics for every calibration method."""

from quantry.observe.body_calls import BodyCalls, body_as_model, body_calls
from quantry.observe.stage import observe
from quantry.observe.statistics import Needs, Statistics

__all__ = [
    "BodyCalls",
    "Needs",
    "Statistics",
    "body_as_model",
    "body_calls",
    "observe",
]
