"""What a second call costs that changes only the calibration method."""

from benchmarks.harness import Comparison, Goal, Row, Side
from benchmarks.rows.quantize import QUANTRY, method_recipe
from benchmarks.workloads import SharedModel
from quantry.recipe import MinMax, Percentile

_WORKLOAD = SharedModel("yolox_nano", 32)
_FIRST, _SECOND = method_recipe(MinMax()), method_recipe(Percentile())

ROWS = (
    Row(
        name="reuse/method",
        title="A second call with only the method changed (fails if it runs the float model), yolox_nano, 32 images",
        sides=(
            Side("first call", QUANTRY, {"recipe": _SECOND}, _WORKLOAD),
            Side(
                "second call",
                "benchmarks.tasks.quantry_tool:quantize_again",
                {"first": _FIRST, "second": _SECOND},
                _WORKLOAD,
            ),
        ),
        comparisons=(Comparison("second call", "first call", (Goal("seconds", at_most=0.1),), larger_is_better=False),),
        quick=True,
    ),
)
