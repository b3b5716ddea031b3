"""Stage 8: compare the quantized model with the float model: accuracy, speed and size."""

from quantry.evaluate.arithmetic import EXACT, Arithmetic, arithmetic_in_force, computing_with
from quantry.evaluate.comparison import bootstrap_interval
from quantry.evaluate.evaluation import Evaluation, MetricScore
from quantry.evaluate.guard import GuardReport, guard
from quantry.evaluate.latency import Latency, measure_latency
from quantry.evaluate.levels import Quality, quality
from quantry.evaluate.metrics import METRICS, Metric, find_metric
from quantry.evaluate.stage import evaluate
from quantry.evaluate.texts import (
    UNITS,
    bytes_text,
    objective_text,
    score_text,
    score_texts,
    size_text,
    speed_text,
)

__all__ = [
    "EXACT",
    "METRICS",
    "UNITS",
    "Arithmetic",
    "Evaluation",
    "GuardReport",
    "Latency",
    "Metric",
    "MetricScore",
    "Quality",
    "arithmetic_in_force",
    "bootstrap_interval",
    "bytes_text",
    "computing_with",
    "evaluate",
    "find_metric",
    "guard",
    "measure_latency",
    "objective_text",
    "quality",
    "score_text",
    "score_texts",
    "size_text",
    "speed_text",
]
