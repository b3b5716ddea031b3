"""The float pass that collects statistics, against plain inference of the same images."""

from benchmarks.harness import Comparison, Goal, Row, Side
from benchmarks.workloads import SharedModel

_OBSERVE = "benchmarks.tasks.quantry_tool:observe"
_INFER = "benchmarks.tasks.inference:infer"
_MEGABYTE = 2.0**20

ROWS = (
    Row(
        name="observe/32",
        title="Statistics for every method at once, against plain float inference, yolox_nano, 32 images",
        sides=(
            Side("observe", _OBSERVE, {}, SharedModel("yolox_nano", 32)),
            Side("plain inference", _INFER, {}, SharedModel("yolox_nano", 32)),
        ),
        comparisons=(
            Comparison(
                "observe",
                "plain inference",
                (Goal("seconds", at_most=3.5), Goal("peak_bytes", at_most=1.5, allowance=64 * _MEGABYTE)),
                larger_is_better=False,
            ),
        ),
        repetitions=5,
        quick=True,
    ),
    Row(
        name="observe/memory",
        title="Memory of the statistics pass with eight times the images, yolox_nano",
        sides=(
            Side("32 images", _OBSERVE, {}, SharedModel("yolox_nano", 32)),
            Side("256 images", _OBSERVE, {}, SharedModel("yolox_nano", 256)),
        ),
        comparisons=(
            Comparison(
                "256 images",
                "32 images",
                (Goal("peak_bytes", at_most=1.0, allowance=16 * _MEGABYTE), Goal("seconds", at_most=8.5)),
                larger_is_better=False,
            ),
        ),
    ),
)
