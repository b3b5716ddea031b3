"""Import time."""

from benchmarks.harness import Comparison, Goal, Row, Side

_TASK = "benchmarks.tasks.imports:import_module"

ROWS = (
    Row(
        name="import",
        title="Import of the library; quantry loads its parts on first use, so both are reported",
        sides=(
            Side("quantry", _TASK, {"name": "quantry"}),
            Side("quantry, ready to quantize", _TASK, {"name": "quantry", "attribute": "quantize"}),
            Side("onnxruntime", _TASK, {"name": "onnxruntime.quantization"}),
            Side("quark", _TASK, {"name": "quark.onnx"}, peer=True),
        ),
        comparisons=(
            Comparison("onnxruntime", "quantry, ready to quantize"),
            Comparison("quark", "quantry, ready to quantize", (Goal("seconds", at_least=1),)),
        ),
        repetitions=5,
        quick=True,
    ),
)
