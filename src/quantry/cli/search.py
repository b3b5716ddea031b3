"""``quantry search``: finds the best recipe for a model."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from quantry.cli.console import check_model
from quantry.cli.frame import ExitCode, OptionGroup, current_output
from quantry.cli.image_arguments import ImageArguments
from quantry.cli.search_advice import advice_for
from quantry.cli.search_job import METRIC, SearchJob, load_job
from quantry.cli.search_pixels import with_proven_pixels
from quantry.cli.search_table import show_search
from quantry.cli.serve import live_page
from quantry.errors import DataError

if TYPE_CHECKING:
    from quantry.autosearch import Score

_CONFIGURATION_FILES = (".yaml", ".yml")
_RACING = "Stop evaluating configurations that are unlikely to win."


@dataclass(frozen=True)
class SearchArguments(OptionGroup):
    """Options of the command; those that were not given keep the defaults of `SearchJob` and `SearchOptions`."""

    data: Annotated[Path | None, typer.Option("--data", "-d", help="Calibration data, as for `quantry quantize`.")] = (
        None
    )
    evaluation_data: Annotated[Path | None, typer.Option(help="Evaluation data; default: a part of --data.")] = None
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels of the evaluation data: classes (.csv, .txt, .json, .npy) or a COCO file."),
    ] = None
    metric: Annotated[str | None, typer.Option(help=METRIC)] = None
    decoder: Annotated[
        str | None, typer.Option(help="Decoder of a detector's outputs: yolox (default), yolov5, yolov8 or boxes.")
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="Preset or recipe file: the base of a space, or tried too."),
    ] = None
    target: Annotated[
        str | None, typer.Option(help="Where the model will run, see `quantry targets`; default: by the recipe.")
    ] = None
    space: Annotated[
        str | None, typer.Option(help="Search space: default, calibration, accuracy, or a .yaml file with a space.")
    ] = None
    calibration_samples: Annotated[
        int | None, typer.Option(help="Maximum number of labelled images used for calibration; default 100.")
    ] = None
    sampler: Annotated[str | None, typer.Option(help="grid, random, tpe (default), cmaes, gp, nsga2 or qmc.")] = None
    tolerance: Annotated[
        str | None, typer.Option(help="Largest accepted drop from the float model's score: 0.01 or 1%.")
    ] = None
    n_trials: Annotated[int | None, typer.Option(help="Stop after this many trials.")] = None
    budget: Annotated[str | None, typer.Option(help="Stop after this much time: 30min, 2h, or seconds.")] = None
    n_candidates: Annotated[int | None, typer.Option(help="Stop when this many trials are within tolerance.")] = None
    patience: Annotated[int | None, typer.Option(help="Stop after this many trials without improvement.")] = None
    objectives: Annotated[
        list[str] | None, typer.Option(help="Besides accuracy: latency, size or bit_operations; may be repeated.")
    ] = None
    racing: Annotated[bool | None, typer.Option(help=_RACING, show_default="no-racing")] = None
    seed: Annotated[int | None, typer.Option(help="Random seed; default 0.")] = None
    n_jobs: Annotated[int | None, typer.Option("--n-jobs", "--workers", "-j", help="Worker processes; default 1.")] = (
        None
    )
    threads: Annotated[int | None, typer.Option(help="onnxruntime threads per worker.")] = None
    devices: Annotated[
        list[str] | None, typer.Option(help="Device of the workers, such as cuda:0; may be repeated.")
    ] = None
    trial_timeout: Annotated[float | None, typer.Option(help="Seconds after which a trial counts as failed.")] = None
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder for models, log and recipe; default quantry_search."),
    ] = None
    log_path: Annotated[Path | None, typer.Option(help="Log file; default auto_search.log in the folder.")] = None
    keep_models: Annotated[
        str | None, typer.Option(help="Which models stay on disk: accepted (default), best or all.")
    ] = None
    storage: Annotated[str | None, typer.Option(help="Database URL of the study; default: a file in the folder.")] = (
        None
    )
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster that runs the trials; its machines see the same files.")
    ] = None
    log_to: Annotated[list[str] | None, typer.Option(help="Also record trials in mlflow or wandb.")] = None
    live: Annotated[bool, typer.Option("--live", help="Serve a page that grows while the search runs.")] = False

    def given(self) -> dict[str, Any]:
        """Return the options on the command line."""
        return {name: value for name, value in vars(self).items() if value is not None and value != []}


def search(
    what: Annotated[
        Path, typer.Argument(help="Float ONNX model, or a .yaml file that describes the search; options override it.")
    ],
    *,
    arguments: SearchArguments,
    images: ImageArguments,
) -> None:
    """Find the recipe whose quantized model is best; run it again to resume an interrupted search."""
    job = load_job(what) if what.suffix.lower() in _CONFIGURATION_FILES else SearchJob(model=what)
    job = _overridden(job, arguments.given(), images.given())
    _check_files(job)
    if not job.images:
        job = with_proven_pixels(job)
    # What the end needs is imported now: in hours of search the installation may change.
    import quantry.evaluate.tasks
    import quantry.report  # noqa: F401

    # The search itself says what it leaves if it is interrupted.
    current_output().explains_interrupt = True
    with _lines_without_terminal(), live_page(job.options.output_dir, enabled=arguments.live):
        result = job.run()
    current_output().explains_interrupt = False
    _warn_of_chance(job, result.reference)
    again = job.command(result.best_recipe or Path("recipe.yaml"), result.output_dir)
    output = current_output()
    page = show_search(output, result, job.metric_name, again)
    line = {**arguments.given(), **{name: value for name, value in vars(images).items() if value is not None}}
    advice = advice_for(job, result, {"what": what, **line})
    if advice is not None:
        advice.show(output)
    code = ExitCode.GOOD if advice is None else ExitCode.NOT_GOOD_ENOUGH
    from quantry.cli.search_result import AdvisedSearch, search_output

    output.result(AdvisedSearch.of(search_output(result, page), advice=advice), code)


def _check_files(job: SearchJob) -> None:
    """Raise before any work, and before any warning, if a file is missing."""
    check_model(job.model)
    for option in ("data", "evaluation_data", "labels"):
        path = getattr(job, option)
        if isinstance(path, Path) and not path.exists():
            raise DataError(f"--{option.replace('_', '-')} must exist, found nothing; at {path}")


def _overridden(job: SearchJob, given: dict[str, Any], images: dict[str, Any]) -> SearchJob:
    """Return a job with options from the command line in place of its own."""
    from quantry.autosearch import split_options

    named = {name: value for name, value in given.items() if name != "live"}
    options, others = split_options(named | ({"sampler": named["sampler"].lower()} if "sampler" in named else {}))
    return replace(job, **others, options=replace(job.options, **options), images={**job.images, **images})


@contextmanager
def _lines_without_terminal() -> Iterator[None]:
    """Write a line per finished trial to standard error, unless that is a terminal, which shows a table."""
    if sys.stderr.isatty():
        yield
        return
    from quantry.autosearch.output import LOGGER

    logger = logging.getLogger(LOGGER)
    before = (logger.level, logger.propagate)
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # With --verbose the root logger writes to the same place.
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _warn_of_chance(job: SearchJob, reference: "Score") -> None:
    """Warn if the float model is no better than random guessing; most often labels or pixels are wrong."""
    chance = _chance(job)
    # With few samples a useless model may be above chance by luck, so the lower bound of the interval is compared.
    lowest = reference.value if reference.interval is None else min(reference.interval)
    if chance is None or lowest > chance or (chance == 0 and reference.value > 0):
        return
    better = "not significantly" if reference.value > chance else "no"
    Console(stderr=True).print(
        f"[bold yellow]warning:[/] the float model itself has {job.metric_name} {reference.value:.4f}, {better} better "
        f"than chance ({chance:.4f}), so this search is meaningless: labels must be the model's class numbers, and "
        "images must be preprocessed as in training (--pixel-scale, --mean, --std, --color, --resize)",
        soft_wrap=True,
    )


def _chance(job: SearchJob) -> float | None:
    """Return the score of random guessing; None if the metric has none."""
    from quantry.autosearch.labelled_data import CLASSIFIER_METRICS, DETECTOR_METRICS
    from quantry.evaluate.tasks import class_count

    metric = job.metric_name
    if metric in CLASSIFIER_METRICS:
        classes = class_count(job.model)
        return min(1.0, CLASSIFIER_METRICS[metric] / classes) if classes else 0.0
    return 0.0 if metric in DETECTOR_METRICS else None
