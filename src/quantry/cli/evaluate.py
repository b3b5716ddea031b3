"""``quantry evaluate``: score one model on labelled data, or compare its outputs with another's."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from quantry.cli.frame import ExitCode, current_output
from quantry.cli.image_arguments import ImageArguments, warn_of_default_pixels
from quantry.cli.search_job import METRIC, SearchJob
from quantry.errors import DataError, RecipeError

if TYPE_CHECKING:
    from quantry.autosearch import Score
    from quantry.autosearch.evaluator import EvaluatorAdapter

_TARGET = "Also score the model on this target's backend, with its own arithmetic; see `quantry targets`."


def evaluate(  # noqa: PLR0913, PLR0917  the command line's options are its parameters
    model: Annotated[Path, typer.Argument(help="ONNX model, float or quantized.")],
    data: Annotated[Path, typer.Option("--data", "-d", help="Evaluation data, as for `quantry quantize`.")],
    labels: Annotated[
        Path | None, typer.Option(help="Labels: .csv, .txt, .json or .npy of classes or numbers, or a COCO file.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help=METRIC)] = None,
    reference: Annotated[
        Path | None, typer.Option("--float", help="Float model: compare scores with it; needed by l1, l2, sqnr, ...")
    ] = None,
    decoder: Annotated[str, typer.Option(help="Decoder of a detector: yolox, yolov5, yolov8 or boxes.")] = "yolox",
    max_drop: Annotated[
        float | None, typer.Option(help="Exit with 3 if the score is worse than the float model's by more than this.")
    ] = None,
    *,
    images: ImageArguments,
    target: Annotated[str | None, typer.Option(help=_TARGET)] = None,
) -> None:
    """Score a model on labelled data, or compare its outputs with the float model's."""
    given = images.given()
    if max_drop is not None and reference is None:
        raise RecipeError(f"--max-drop needs --float, the model to compare with, got {max_drop:g} alone")
    if not given:
        warn_of_default_pixels(model, data)
    job = SearchJob(reference or model, data, data, labels, metric, decoder, images=given)
    adapter = _adapter(job, reference)
    simulated = _simulated(adapter, model, target)
    scores = {"model": _plain(model, simulated)}
    difference = None
    if target is not None:
        on_device = _on_target(adapter, model, target)
        scores = {"model": _plain(model, on_device), "simulation": scores["model"]}
        difference = paired_difference(on_device, simulated)
    if reference is not None:
        scores["float"] = _plain(reference, adapter.float_score(reference))
    _show(job.metric_name, scores, _drop(adapter.direction, scores), max_drop, difference)


def _simulated(adapter: "EvaluatorAdapter", model: Path, target: str | None) -> "Score":
    from quantry.targets import simulated_for

    with simulated_for(target):
        return adapter.score(model)


def _on_target(adapter: "EvaluatorAdapter", model: Path, target: str) -> "Score":
    from quantry.quantization import DEFAULT_STORE, open_store
    from quantry.targets import on_target

    if not hasattr(adapter.evaluator, "fingerprint"):
        raise RecipeError("--target needs one of quantry's metrics, because a function runs the model by itself")
    with on_target(target, open_store(DEFAULT_STORE)):
        return adapter.score(model)


def paired_difference(one: "Score", other: "Score") -> dict[str, Any]:
    """Return how much one score exceeds another, with an interval over the same samples where it is known."""
    from quantry.evaluate import bootstrap_interval

    interval = None
    if one.per_sample is not None and other.per_sample is not None and len(one.per_sample) > 1:
        interval = bootstrap_interval(one.per_sample - other.per_sample)
    return {"value": one.value - other.value, "interval": interval}


def _adapter(job: SearchJob, reference: Path | None) -> "EvaluatorAdapter":
    from quantry.autosearch.evaluator import EvaluatorAdapter
    from quantry.evaluate.tasks import distance_evaluator

    _, evaluator, _ = job.evaluation_parts()
    if not isinstance(evaluator, str):
        return EvaluatorAdapter.of(evaluator)
    if reference is None:
        raise DataError(f"the metric {evaluator} compares with a float model, got none; give --float, or --labels")
    options = job.image_options() if job.images else None
    return EvaluatorAdapter.of(distance_evaluator(reference, job.data, evaluator, options=options))


def _plain(model: Path, score: "Score") -> dict[str, Any]:
    return {"path": model, "score": score.value, "interval": score.interval}


def _drop(direction: str, scores: dict[str, dict[str, Any]]) -> float | None:
    if "float" not in scores:
        return None
    sign = -1.0 if direction == "minimize" else 1.0
    ours, theirs = scores["model"]["score"], scores["float"]["score"]
    return 0.0 if ours == theirs else float(sign * (theirs - ours))


def _show(
    metric: str,
    scores: dict[str, dict[str, Any]],
    drop: float | None,
    max_drop: float | None,
    difference: dict[str, Any] | None,
) -> None:
    output = current_output()
    for name, score in scores.items():
        interval = score["interval"]
        around = "" if interval is None else f" [{interval[0]:.4f}, {interval[1]:.4f}]"
        path = "" if output.quiet else f"  {escape(str(score['path']))}"
        output.answer.print(f"{name:10} {escape(metric)} {score['score']:.4f}{escape(around)}{path}", highlight=False)
    if difference is not None:
        low_high = difference["interval"]
        around = "" if low_high is None else f" [{low_high[0]:+.4f}, {low_high[1]:+.4f}]"
        output.console.print(f"target minus simulation {difference['value']:+.4f}{escape(around)}", highlight=False)
    if drop is not None:
        output.console.print(f"drop   {drop:.4f}", highlight=False)
    bad = drop is not None and max_drop is not None and drop > max_drop
    if bad:
        output.warn(f"the drop is {drop:.4f}, more than --max-drop {max_drop:g}")
    output.result(
        {"metric": metric, **scores, "target_minus_simulation": difference, "drop": drop, "max_drop": max_drop},
        ExitCode.NOT_GOOD_ENOUGH if bad else ExitCode.GOOD,
    )
