"""How long evaluating a power-of-two int8 model takes, against inference of the float model."""

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


ROWS = tuple(_row(suite.name) for suite in SUITES)
