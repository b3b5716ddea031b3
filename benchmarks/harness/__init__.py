"""Runs one side of a comparison in a fresh process, and compares sides. Knows no quantization."""

from benchmarks.harness.measure import Failure, Measurement, measure
from benchmarks.harness.ratios import Ratio, noise, ratio
from benchmarks.harness.row import Comparison, Goal, QualityGoal, Row, Side, Workload
from benchmarks.harness.run_row import Repetitions, RowResult, run_row

__all__ = [
    "Comparison",
    "Failure",
    "Goal",
    "Measurement",
    "QualityGoal",
    "Ratio",
    "Repetitions",
    "Row",
    "RowResult",
    "Side",
    "Workload",
    "measure",
    "noise",
    "ratio",
    "run_row",
]
