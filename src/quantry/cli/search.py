"""``quantry search``: the best recipe for a model, by itself."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from quantry.cli.image_arguments import given_images, warn_of_default_pixels
from quantry.cli.search_chance import warn_of_chance
from quantry.cli.search_job import SearchJob, load_job
from quantry.cli.search_progress import lines_without_terminal
from quantry.cli.search_table import show_search

_FILES = (".yaml", ".yml")
_OPTIONS = {"evaluation_data": "eval_data", "objectives": "objective"}
"""Fields of a `SearchJob` whose options are called otherwise."""


def search(  # noqa: PLR0913, PLR0917  the command line's options are its parameters
    context: typer.Context,
    what: Annotated[
        Path, typer.Argument(help="Float ONNX model, or a .yaml file that describes the search; options override it.")
    ],
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Calibration data, as for `quantry quantize`.")
    ] = None,
    eval_data: Annotated[Path | None, typer.Option(help="Data to judge by; default: a part of --data.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Of the data to judge by: .csv, .txt or .json of classes, or a COCO file.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="top1, top5, map, map50, l2, l1, cosine, psnr, ssim or sqnr.")
    ] = None,
    decoder: Annotated[str, typer.Option(help="A detector's output: yolox, yolov5, yolov8 or boxes.")] = "yolox",
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="Preset or recipe file to start from.")] = "S8S8_AAWS",
    space: Annotated[
        str | None,
        typer.Option(help="What to try: calibration (default), accuracy, or a .yaml file with a space."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="The most time: 30min, 2h, or seconds.")] = None,
    trials: Annotated[int | None, typer.Option(help="At most so many trials.")] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="How much worse than the float model is accepted: 0.01 or 1%.")
    ] = None,
    candidates: Annotated[int | None, typer.Option(help="Stop when so many are within tolerance.")] = None,
    sampler: Annotated[str, typer.Option(help="grid, random, tpe, cmaes, gp, nsga2 or qmc.")] = "tpe",
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Worker processes.")] = 1,
    objective: Annotated[
        list[str] | None, typer.Option(help="Beside accuracy: latency, size or bit_operations; repeat.")
    ] = None,
    racing: Annotated[bool, typer.Option(help="Stop evaluating what cannot win.")] = False,
    seed: Annotated[int, typer.Option(help="Start of random numbers.")] = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a trial counts as failed.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for models, log and recipe.")] = Path(
        "quantry_search"
    ),
    storage: Annotated[
        str | None, typer.Option(help="Database of the study, as a URL; without it, a file in the folder.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster that runs the trials; its machines see the same files.")
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Per-channel mean of images; see `quantry quantize`.")] = None,
    std: Annotated[str | None, typer.Option(help="Per-channel deviation of images.")] = None,
    pixel_scale: Annotated[str | None, typer.Option(help="Factor on pixel values 0..255; 1/255 gives 0..1.")] = None,
    color: Annotated[str | None, typer.Option(help="RGB or BGR.")] = None,
    resize: Annotated[str | None, typer.Option(help="stretch, letterbox or center-crop.")] = None,
    crop_fraction: Annotated[float | None, typer.Option(help="Part that center-crop keeps.")] = None,
) -> None:
    """Find the recipe whose quantized model is best; run it again to go on where it was stopped."""
    images = given_images(
        mean=mean, std=std, pixel_scale=pixel_scale, color=color, resize=resize, crop_fraction=crop_fraction
    )
    given: dict[str, Any] = {
        "data": data,
        "evaluation_data": eval_data,
        "labels": labels,
        "metric": metric,
        "decoder": decoder,
        "recipe": recipe,
        "space": space,
        "budget": budget,
        "tolerance": tolerance,
        "sampler": sampler.lower(),
        "trials": trials,
        "candidates": candidates,
        "jobs": jobs,
        "objectives": tuple(objective or ()),
        "racing": racing,
        "seed": seed,
        "timeout": timeout,
        "output": output,
        "storage": storage,
        "cluster": cluster,
    }
    if what.suffix.lower() in _FILES:
        job = load_job(what)
        written = {name: value for name, value in given.items() if _is_written(context, name)}
        job = replace(job, **written, images={**job.images, **images})
    else:
        job = SearchJob(model=what, images=images, **given)
    if not job.images:
        warn_of_default_pixels(job.model, job.data or job.evaluation_data)
    # What the end needs is loaded before hours of search, in which an installation may change.
    import quantry.evaluate.tasks
    import quantry.report  # noqa: F401

    with lines_without_terminal():
        result = job.run()
    warn_of_chance(job, result.reference)
    again = job.command(result.best_recipe or Path("recipe.yaml"), result.output_dir)
    show_search(Console(), result, job.judged_by, again)


def _is_written(context: typer.Context, field: str) -> bool:
    """Return whether the user wrote the option of a field of `SearchJob` on the command line."""
    source = context.get_parameter_source(_OPTIONS.get(field, field))
    return source is not None and source.name == "COMMANDLINE"
