"""``quantry search``: finds the best recipe for a model."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from quantry.cli.console import check_model
from quantry.cli.frame import ExitCode, current_output
from quantry.cli.image_arguments import ImageArguments
from quantry.cli.option_parameters import GivenOptions, OptionsOf
from quantry.cli.search_advice import advice_for
from quantry.cli.search_job import SearchJob, load_job
from quantry.cli.search_pixels import with_proven_pixels
from quantry.cli.search_table import show_search
from quantry.cli.serve import live_page
from quantry.errors import DataError
from quantry.recipe.search_options import SearchOptions

if TYPE_CHECKING:
    from quantry.autosearch import Score

_CONFIGURATION_FILES = (".yaml", ".yml")


def search(
    what: Annotated[
        Path, typer.Argument(help="Float ONNX model, or a .yaml file that describes the search; options override it.")
    ],
    *,
    inputs: Annotated[GivenOptions, OptionsOf(SearchJob, omitted=("model", "images", "options"))],
    options: Annotated[GivenOptions, OptionsOf(SearchOptions)],
    live: Annotated[bool, typer.Option("--live", help="Serve a page that grows while the search runs.")] = False,
    images: ImageArguments,
) -> None:
    """Find the recipe whose quantized model is best; run it again to resume an interrupted search."""
    job = load_job(what) if what.suffix.lower() in _CONFIGURATION_FILES else SearchJob(model=what)
    all_images = {**job.images, **images.given()}
    job = replace(job, **inputs, options=replace(job.options, **options), images=all_images)
    _check_files(job)
    if not job.images:
        job = with_proven_pixels(job)
    # What the end needs is imported now: in hours of search the installation may change.
    import quantry.evaluate.tasks
    import quantry.report  # noqa: F401

    # The search itself says what it leaves if it is interrupted.
    current_output().explains_interrupt = True
    with _lines_without_terminal(), live_page(job.options.output_dir, enabled=live):
        result = job.run()
    current_output().explains_interrupt = False
    _warn_of_chance(job, result.reference)
    again = job.command(result.best_recipe or Path("recipe.yaml"), result.output_dir)
    output = current_output()
    page = show_search(output, result, job.metric_name, again)
    image_words = {name: value for name, value in vars(images).items() if value is not None}
    advice = advice_for(job, result, {"what": what, **inputs, **options, "live": live, **image_words})
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


@contextmanager
def _lines_without_terminal() -> Iterator[None]:
    """Write a line per finished trial to standard error, unless that is a terminal, which shows a table."""
    if sys.stderr.isatty():
        yield
        return
    from quantry.autosearch.output import LOGGER

    logger = logging.getLogger(LOGGER)
    settings = (logger.level, logger.propagate)
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # With --verbose the root logger writes to the same place.
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(settings[0])
        logger.propagate = settings[1]


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
