"""How fast one plan runs in each dialect: a vendor's pair with its function must cost what the native one does.

FixNeuron, which keeps weights as floats, has no such goal.
"""

from dataclasses import replace
from typing import Any

from benchmarks.harness import Comparison, Goal, Row, Side
from benchmarks.rows.quantize import QUANTRY
from benchmarks.workloads import QuantizedModel, SharedModel
from quantry.recipe import PRESETS, EmitOptions, FixNeuron, Format, Qdq, VitisDialect, VitisQdq, to_plain

_RUN = "benchmarks.tasks.inference:run_repeatedly"
_GOAL = Goal("cpu_seconds", at_most=1.05)
_FORMATS: tuple[tuple[str, Format], ...] = (
    ("qdq", Qdq()),
    *((dialect.value, VitisQdq(dialect)) for dialect in VitisDialect),
    ("FixNeuron", FixNeuron()),
)


def _arguments(format_: Format) -> dict[str, Any]:
    return {"recipe": to_plain(replace(PRESETS["XINT8"].recipe, emit=EmitOptions(format_)))}


def _row(suite: str, runs: int) -> Row:
    source = SharedModel(suite)
    models = {
        label: QuantizedModel(f"{suite}-{label}.onnx", QUANTRY, source, _arguments(format_))
        for label, format_ in _FORMATS
    }
    return Row(
        name=f"dialects/{suite}",
        title=f"{runs} runs of XINT8 in each dialect, {suite}",
        sides=tuple(Side(label, _RUN, {"runs": runs}, model) for label, model in models.items()),
        comparisons=tuple(
            Comparison(label, "qdq", () if label == "FixNeuron" else (_GOAL,), larger_is_better=False)
            for label in models
            if label != "qdq"
        ),
        repetitions=5,
    )


ROWS = (_row("cifar10", 400),)
