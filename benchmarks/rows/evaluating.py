"""How long evaluating a quantized model takes, against inference of the float model."""

from benchmarks.accuracy.suites import SUITES
from benchmarks.harness import Comparison, Goal, Row, Side
from benchmarks.rows.quantize import QUANTRY
from benchmarks.workloads import QuantizedModel, SharedModel

_INFER = "benchmarks.tasks.inference:infer"
_EVALUATE = "benchmarks.tasks.inference:evaluate"
_RECIPES = ("XINT8", "RECOMMENDED-NPU")


def _row(suite: str) -> Row:
    source = SharedModel(suite)
    models = {
        recipe: QuantizedModel(f"{suite}-{recipe}.onnx", QUANTRY, source, {"recipe": recipe}) for recipe in _RECIPES
    }
    return Row(
        name=f"evaluate/{suite}",
        title=f"Running the calibration samples through an evaluation session, {suite}",
        sides=(
            *(Side(recipe, _EVALUATE, {}, model) for recipe, model in models.items()),
            Side("float", _INFER, {}, source),
        ),
        comparisons=tuple(
            Comparison(recipe, "float", (Goal("seconds", at_most=1.1),), larger_is_better=False) for recipe in models
        ),
        repetitions=5,
    )


def _cpu_row(suite: str) -> Row:
    """Return the row of models with float scales: as a search for CPUs scores them, and in simulation."""
    source = SharedModel(suite)

    def side(name: str, recipe: str, target: str) -> Side:
        model = QuantizedModel(f"{suite}-{recipe}.onnx", QUANTRY, source, {"recipe": recipe})
        return Side(name, _EVALUATE, {"target": target}, model)

    sides = (side("CPU_INT8 for ort-cpu", "CPU_INT8", "ort-cpu"), side("S8S8_AAWS simulated", "S8S8_AAWS", ""))
    return Row(
        name=f"evaluate/float-scales/{suite}",
        title=f"Running the calibration samples through the session that a search scores trials in, {suite}",
        sides=(*sides, Side("float", _INFER, {}, source)),
        comparisons=tuple(
            Comparison(one.label, "float", (Goal("seconds", at_most=1.1),), larger_is_better=False) for one in sides
        ),
        repetitions=5,
    )


ROWS = tuple(row for suite in SUITES for row in (_row(suite.name), _cpu_row(suite.name)))
