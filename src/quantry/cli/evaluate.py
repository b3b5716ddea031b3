"""``quantry evaluate``: score one model on labelled data, or compare its outputs with another's."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from quantry.cli.frame import ExitCode, current_output
from quantry.cli.image_arguments import ImageArguments, warn_of_default_pixels
from quantry.cli.search_job import SearchJob
from quantry.errors import DataError, RecipeError
from quantry.recipe.checked import field_docs
from quantry.recipe.json_result import Interval, JsonResult, Number, ScoreEntry, optional_key

if TYPE_CHECKING:
    from quantry.autosearch import Score
    from quantry.autosearch.evaluator import EvaluatorAdapter

_TARGET = "Also score the model on this target's backend, with its own arithmetic; see `quantry targets`."


@dataclass(frozen=True)
class ScoredModel(JsonResult):
    """A model and its score.

    Attributes:
        path: The model.
        score: Its score.
        interval: 95 % confidence interval; null if there is none.
    """

    path: Path
    score: float
    interval: Interval

    @classmethod
    def of_score(cls, path: Path, score: "Score") -> "ScoredModel":
        """Return a model with its score."""
        return cls(path, score.value, score.interval)


@dataclass(frozen=True)
class EvaluateResult(JsonResult):
    """The score of a model.

    Attributes:
        metric: Name of the metric.
        model: The model; with a target, as the target computes it.
        target_minus_simulation: The difference on the same samples; null without a target.
        drop: How much worse than the float model; null without one.
        max_drop: The limit that was given.
        float: The float model.
        simulation: The model in simulation, with a target.
    """

    metric: str
    model: ScoredModel
    target_minus_simulation: ScoreEntry | None
    drop: Number | None
    max_drop: Number | None
    float: ScoredModel | None = optional_key()
    simulation: ScoredModel | None = optional_key()


def evaluate(  # noqa: PLR0913, PLR0917  the command line's options are its parameters
    model: Annotated[Path, typer.Argument(help="ONNX model, float or quantized.")],
    data: Annotated[Path, typer.Option("--data", "-d", help="Evaluation data, as for `quantry quantize`.")],
    labels: Annotated[
        Path | None, typer.Option(help="Labels: .csv, .txt, .json or .npy of classes or numbers, or a COCO file.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help=field_docs(SearchJob)["metric"])] = None,
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
    image_fields = images.given()
    if max_drop is not None and reference is None:
        raise RecipeError(f"--max-drop needs --float, the model to compare with, got {max_drop:g} alone")
    if not image_fields:
        warn_of_default_pixels(model, data)
    job = SearchJob(reference or model, data, data, labels, metric, decoder, images=image_fields)
    adapter = _adapter(job, reference)
    simulated = _simulated(adapter, model, target)
    score = simulated if target is None else _on_target(adapter, model, target)
    float_score = None if reference is None else adapter.float_score(reference)
    result = EvaluateResult(
        job.metric_name,
        ScoredModel.of_score(model, score),
        None if target is None else paired_difference(score, simulated),
        None if float_score is None else _drop(adapter.direction, score, float_score),
        max_drop,
        None if reference is None or float_score is None else ScoredModel.of_score(reference, float_score),
        None if target is None else ScoredModel.of_score(model, simulated),
    )
    _show(result)


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


def paired_difference(score: "Score", reference: "Score") -> ScoreEntry:
    """Return how much a score exceeds another, with an interval over the same samples where it is known."""
    from quantry.evaluate.paired import difference_interval

    is_single = score.per_sample is not None and len(score.per_sample) == 1
    interval = None if is_single else difference_interval(score.per_sample, reference.per_sample)
    return ScoreEntry(score.value - reference.value, interval)


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


def _drop(direction: str, score: "Score", float_score: "Score") -> float:
    sign = -1.0 if direction == "minimize" else 1.0
    return 0.0 if score.value == float_score.value else float(sign * (float_score.value - score.value))


def _show(result: EvaluateResult) -> None:
    output = current_output()
    for name in ("model", "simulation", "float"):
        scored: ScoredModel | None = getattr(result, name)
        if scored is None:
            continue
        around = "" if scored.interval is None else f" [{scored.interval[0]:.4f}, {scored.interval[1]:.4f}]"
        path = "" if output.quiet else f"  {escape(str(scored.path))}"
        line = f"{name:10} {escape(result.metric)} {scored.score:.4f}{escape(around)}{path}"
        output.answer.print(line, highlight=False)
    difference, drop, max_drop = result.target_minus_simulation, result.drop, result.max_drop
    if difference is not None:
        ends = difference.interval
        around = "" if ends is None else f" [{ends[0]:+.4f}, {ends[1]:+.4f}]"
        output.console.print(f"target minus simulation {difference.value:+.4f}{escape(around)}", highlight=False)
    if drop is not None:
        output.console.print(f"drop   {drop:.4f}", highlight=False)
    is_bad = drop is not None and max_drop is not None and drop > max_drop
    if is_bad:
        output.warn(f"the drop is {drop:.4f}, more than --max-drop {max_drop:g}")
    output.result(result, ExitCode.NOT_GOOD_ENOUGH if is_bad else ExitCode.GOOD)
