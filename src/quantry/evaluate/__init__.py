"""Stage 8: compare the quantized model with the float model: accuracy, speed and size."""

from quantry.evaluate.comparison import bootstrap_interval
from quantry.evaluate.evaluation import Evaluation, MetricScore
from quantry.evaluate.guard import GuardReport, guard
from quantry.evaluate.latency import Latency, measure_latency
from quantry.evaluate.metrics import METRICS, Metric, find_metric
from quantry.evaluate.stage import evaluate

__all__ = [
    "METRICS",
    "Evaluation",
    "GuardReport",
    "Latency",
    "Metric",
    "MetricScore",
    "bootstrap_interval",
    "evaluate",
    "find_metric",
    "guard",
    "measure_latency",
]
