"""Stage 8: run the quantized model, and say how near it is to the float one, how fast and how large."""

from quantry.evaluate.comparison import bootstrap_interval
from quantry.evaluate.evaluation import Evaluation, MetricScore
from quantry.evaluate.latency import Latency, measure_latency
from quantry.evaluate.metrics import METRICS, Metric, find_metric
from quantry.evaluate.stage import evaluate

__all__ = [
    "METRICS",
    "Evaluation",
    "Latency",
    "Metric",
    "MetricScore",
    "bootstrap_interval",
    "evaluate",
    "find_metric",
    "measure_latency",
]
