"""What costs most elsewhere: finetuning every layer, and choosing types layer by layer."""

from dataclasses import replace

from benchmarks.harness import Comparison, Goal, Row, Side
from benchmarks.rows.quantize import QUANTRY, QUARK
from benchmarks.workloads import SharedModel
from quantry.recipe import Gptq, TuneOptions, find_preset, to_plain

_WORKLOAD = SharedModel("cifar10", 64)
_GPTQ = dict(to_plain(replace(find_preset("XINT8").recipe, tune=TuneOptions((Gptq(),)))))


def _row(name: str, title: str, preset: str, goals: tuple[Goal, ...]) -> Row:
    return Row(
        name=name,
        title=f"{title}, resnet20, 64 images",
        sides=(
            Side("quantry", QUANTRY, {"recipe": preset}, _WORKLOAD),
            Side("quantry with GPTQ", QUANTRY, {"recipe": _GPTQ}, _WORKLOAD),
            Side("quark", QUARK, {"preset": preset}, _WORKLOAD, peer=True),
        ),
        comparisons=(Comparison("quark", "quantry", goals), Comparison("quark", "quantry with GPTQ", goals)),
        repetitions=2,
    )


ROWS = (
    _row("tune/adaround", "AdaRound of all layers (XINT8_ADAROUND)", "XINT8_ADAROUND", (Goal("seconds", at_least=10),)),
    _row("tune/adaquant", "AdaQuant of all layers (XINT8_ADAQUANT)", "XINT8_ADAQUANT", (Goal("seconds", at_least=10),)),
)
