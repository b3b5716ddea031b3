"""Automatic search: compared with the peer's, with racing, and with two workers."""

from typing import Any

from benchmarks.harness import Comparison, Goal, QualityGoal, Row, Side
from benchmarks.workloads import SharedModel

_DOCUMENT = "benchmarks.tasks.document_search:search"
_NATIVE = "benchmarks.tasks.quantry_search:search"
_DEFAULT = "benchmarks.tasks.quantry_search:default_space"
_PROCESSES = "benchmarks.tasks.inference:run_in_processes"
_WORKLOAD = SharedModel("yolox_nano", 32)


def _document_row(name: str, title: str, least: float, *, equalization: bool) -> Row:
    arguments: dict[str, Any] = {"equalization": equalization}
    return Row(
        name=name,
        title=title,
        sides=(
            Side("quantry", _DOCUMENT, {"library": "quantry", **arguments}, _WORKLOAD),
            Side("quark", _DOCUMENT, {"library": "quark", **arguments}, _WORKLOAD, peer=True),
        ),
        comparisons=(Comparison("quark", "quantry", (Goal("seconds", at_least=least),)),),
    )


_ANYTIME_MODELS = ("yolox_nano", "minilm_stsb", "mobilenetv2_035", "squeezenet11", "mobilenetv1_025", "fastestdet")
_ANYTIME_SECONDS = 120


def _anytime_row(model: str, target: str) -> Row:
    """Return the row that compares the result after 10 % of a budget with that after all of it."""
    arguments = {"suite": model, "target": target}
    whole, tenth = ({**arguments, "seconds": seconds} for seconds in (_ANYTIME_SECONDS, _ANYTIME_SECONDS / 10))
    return Row(
        name=f"search/anytime/{target}/{model}",
        title=f"The default space for {target} with 10 % of a budget of two minutes against all of it, {model}",
        sides=(
            Side("two minutes", _DEFAULT, whole, SharedModel(model, 32)),
            Side("12 seconds", _DEFAULT, tenth, SharedModel(model, 32)),
        ),
        # Two points are well below the noise of a metric on 200 samples.
        comparisons=(Comparison("two minutes", "12 seconds", (QualityGoal("best", loss=0.02),)),),
        repetitions=1,
    )


ROWS = (
    _document_row(
        "search/document/calibration",
        "AutoSearch of document 000 (8 configurations: method, type, moving average), yolox_nano, 32 images",
        25.0,
        equalization=False,
    ),
    _document_row(
        "search/document/equalization",
        "The same with cross-layer equalization off and on (16 configurations), yolox_nano, 32 images",
        35.0,
        equalization=True,
    ),
    Row(
        name="search/trials",
        title="200 trials without finetuning by two workers, against four observations and the evaluations alone",
        sides=(
            Side("200 trials", _NATIVE, {"space": "wide", "trials": 200, "n_jobs": 2}, _WORKLOAD),
            Side("observations and evaluations", "benchmarks.tasks.quantry_search:floor", {"trials": 200}, _WORKLOAD),
        ),
        comparisons=(
            Comparison(
                "200 trials",
                "observations and evaluations",
                (Goal("seconds", at_most=1.5),),
                larger_is_better=False,
            ),
        ),
        repetitions=2,
    ),
    *(_anytime_row(model, target) for target in ("ort-cpu", "vitisai") for model in _ANYTIME_MODELS),
    Row(
        name="search/racing",
        title="Racing against evaluating everything (32 configurations), mobilenetv2_035, 512 images",
        sides=(
            Side("racing", _NATIVE, {"space": "methods", "racing": True}, SharedModel("mobilenetv2_035", 512)),
            Side("everything", _NATIVE, {"space": "methods"}, SharedModel("mobilenetv2_035", 512)),
        ),
        comparisons=(Comparison("racing", "everything", larger_is_better=False),),
        repetitions=2,
    ),
    Row(
        name="search/workers",
        title="Two workers against one with one thread, and against one with both cores, yolox_nano, 32 images; "
        "plain inference by one process and by two shows what the machine gains from its second core",
        sides=(
            Side("one worker", _NATIVE, {"space": "methods", "n_jobs": 1, "threads": 1}, _WORKLOAD),
            Side("two workers", _NATIVE, {"space": "methods", "n_jobs": 2}, _WORKLOAD),
            Side("one process, both cores", _NATIVE, {"space": "methods", "n_jobs": 1}, _WORKLOAD),
            Side("inference, one process", _PROCESSES, {"runs": 600, "processes": 1}, _WORKLOAD),
            Side("inference, two processes", _PROCESSES, {"runs": 600, "processes": 2}, _WORKLOAD),
        ),
        comparisons=(
            Comparison("one worker", "two workers", (Goal("seconds", at_least=1.7),)),
            Comparison("one process, both cores", "two workers"),
            Comparison("inference, one process", "inference, two processes"),
        ),
    ),
)
