"""``quantry demo``: search the best recipe for the built-in detector, or compare presets on it."""

import time
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from quantry.cli.frame import Output, current_output
from quantry.cli.search_table import show_search
from quantry.errors import RecipeError, require_choice
from quantry.recipe import (
    PRESETS,
    DerivedBias,
    EvaluateOptions,
    LayerWisePercentile,
    MinMax,
    MinMSE,
    Percentile,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    SmoothQuant,
    TensorSpec,
    brief,
)
from quantry.recipe.json_result import JsonResult
from quantry.runtime.threads import thread_count

if TYPE_CHECKING:
    from quantry.autosearch import SearchResult, Space

_POWER_OF_TWO_INT8 = TensorSpec(scale=PowerOfTwoScale())

NAIVE = Recipe(
    name="power-of-two MinMax (naive)",
    plan=PlanOptions(activation=_POWER_OF_TWO_INT8, weight=_POWER_OF_TWO_INT8, bias=DerivedBias()),
    scale=ScaleOptions(activation=MinMax(), weight=MinMax()),
)
"""The default for a power-of-two NPU: the extremes of every tensor, with scales rounded to the nearest power of two."""

RECIPES: tuple[Recipe, ...] = (
    NAIVE,
    *(PRESETS[name].recipe for name in ("XINT8", "A8W8", "S8S8_AAWS", "U8S8_AAWS", "CPU_INT8", "A16W8")),
)

TARGETS: dict[str, tuple[str, dict[str, list[Any]]]] = {
    "npu": (
        "XINT8",
        {
            "prepare.npu.sigmoid_to_hard_sigmoid": [True, False],
            "equalize.smooth": [None, SmoothQuant()],
            "scale.activation": [MinMSE(), Percentile(99.9), Percentile(99.99), MinMax()],
        },
    ),
    "cpu": (
        "CPU_INT8",
        {
            "scale.activation": [
                MinMax(),
                *(Percentile(percent) for percent in (99.5, 99.9, 99.95, 99.99)),
                LayerWisePercentile(),
                MinMSE(),
                MinMSE(after_functions=True),
            ],
            "equalize.smooth": [None, SmoothQuant()],
        },
    ),
}
"""Targets with the preset that their search space starts from, and the values to try."""

_ON_TIME = (
    "onnxruntime simulates signed int8 and 16 bits in float on CPUs, so these times say nothing about an NPU; "
    "x float is the time divided by the float model's."
)


@dataclass(frozen=True)
class DemoRow(JsonResult):
    """A preset, as in the table.

    Attributes:
        recipe: Its name.
        map: Mean average precision.
        kilobytes: Size of the model.
        time_ratio: Its time divided by the float model's.
        made_in: How long quantization took.
    """

    recipe: str
    map: str
    kilobytes: str
    time_ratio: str
    made_in: str


@dataclass(frozen=True)
class DemoPresets(JsonResult):
    """The presets compared on the built-in detector.

    Attributes:
        presets: The rows of the table.
    """

    presets: tuple[DemoRow, ...]


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for models, log and recipe.")] = Path(
        "demo-out"
    ),
    target: Annotated[str, typer.Option(help="Deployment target: cpu, or npu with power-of-two scales.")] = "cpu",
    scenes: Annotated[int, typer.Option(help="Number of labelled scenes to evaluate on.")] = 60,
    samples: Annotated[int, typer.Option(help="Number of scenes to calibrate on.")] = 24,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Worker processes.", show_default="2")] = None,
    presets: Annotated[bool, typer.Option(help="Compare several presets instead of searching.")] = False,
) -> None:
    """Search the best recipe for the built-in detector by mean average precision."""
    for option, count in (("--scenes", scenes), ("--samples", samples)):
        if count < 1:
            raise RecipeError(f"{option} must be at least 1, got {count}")
    if jobs is not None and jobs < 1:
        raise RecipeError(f"--jobs must be at least 1, got {jobs}")
    out = current_output()
    console = out.console
    if presets:
        out.result(DemoPresets(compare_presets(out, output, scenes, samples)))
        return
    from quantry import demo as embedded
    from quantry.autosearch import SearchOptions, run_search

    space = _space(target)
    workers = jobs or min(2, thread_count())
    console.print(
        f"A small detector of {len(embedded.CLASS_NAMES)} shapes is quantized to int8 for the target {target}.\n"
        f"1. Every recipe is calibrated on the same {samples} images; the float model runs over them only once.\n"
        f"2. Each result is scored by mean average precision (mAP) on {scenes} other, labelled images.\n"
        f"3. The best model, its recipe and a report are kept in {output / target}. {workers} workers.\n",
        soft_wrap=True,
        highlight=False,
    )
    result = run_search(
        embedded.model_path(),
        embedded.calibration_inputs(samples),
        embedded.ScenePrecision(scenes),
        space,
        SearchOptions(sampler="grid", n_jobs=workers, output_dir=output / target, keep_models="best"),
    )
    page = show_search(out, result, "mAP")
    if result.best_recipe is not None:
        console.rule("recipe.yaml: differences from the preset")
        base = PRESETS[TARGETS[target][0]].recipe
        assert result.best is not None
        for difference in base.diff(result.best.recipe):
            console.print(f"  {difference.path}: {escape(brief(difference.theirs))}", soft_wrap=True, highlight=False)
    _what_to_remember(console, result, page)
    from quantry.cli.search_result import search_output

    out.result(search_output(result, page))


def _what_to_remember(console: Console, result: "SearchResult", page: Path) -> None:
    """Print what a newcomer should take along."""
    best, first = result.best, result.trials[0]
    if best is None or best.score is None or first.score is None:
        return
    console.rule("what to remember")
    float_score = result.reference.value
    console.print(
        f"  float model          mAP {float_score:.3f}\n"
        f"  first recipe tried   mAP {first.score:.3f}\n"
        f"  best recipe found    mAP {best.score:.3f}, {100 * best.score / float_score:.0f} % of the float model, in "
        f"{result.seconds:.0f} s\n"
        f"  report               {page}\n"
        "Now your own model:\n"
        "  quantry quantize model.onnx --data images/ --pixel-scale 1/255 --report report.html\n"
        "  quantry search model.onnx --data images/ --labels labels.csv --tolerance 1% --budget 10min --live\n"
        "  quantry --help",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _space(target: str) -> "Space":
    from quantry.autosearch import Space

    require_choice("--target", target, TARGETS)
    preset, fields = TARGETS[target]
    return Space.of(PRESETS[preset].recipe, fields, name=preset)


def compare_presets(out: Output, output: Path, scenes: int, samples: int) -> tuple[DemoRow, ...]:
    """Quantize the built-in detector with several presets and print accuracy, size and time of each.

    Args:
        out: Where to print.
        output: Folder for the quantized models.
        scenes: Number of labelled scenes to evaluate on.
        samples: Number of scenes to calibrate on.

    Returns:
        The rows of the table.
    """
    from quantry import demo as embedded

    output.mkdir(parents=True, exist_ok=True)
    model, data = embedded.model_path(), embedded.calibration_inputs(samples)
    table = Table(title="The built-in detector, quantized")
    table.add_column("recipe", no_wrap=True)
    for heading in ("mAP", "kB", "x float", "made in"):
        table.add_column(heading, justify="right")
    rows: list[DemoRow] = []
    with Progress(console=Console(stderr=True), transient=True, disable=out.quiet) as progress:
        task = progress.add_task("float model", total=len(RECIPES) + 1)
        reference = embedded.ScenePrecision(scenes)(model)
        rows.append(DemoRow("float", f"{reference:.4f}", _kilobytes(model), "1.00", ""))
        for recipe in RECIPES:
            progress.update(task, advance=1, description=recipe.name)
            rows.append(_row(recipe, model, data, output, scenes))
    for row in rows:
        table.add_row(*astuple(row))
    out.answer.print(table)
    out.console.print(_ON_TIME)
    out.console.print(f"The models are in [bold]{escape(str(output))}[/].", soft_wrap=True)
    return tuple(rows)


def _row(recipe: Recipe, model: Path, data: Any, output: Path, scenes: int) -> DemoRow:
    from quantry import demo as embedded
    from quantry.quantization import quantize

    timed = replace(recipe, evaluate=EvaluateOptions(latency_runs=20))
    started = time.perf_counter()
    result = quantize(model, data, timed, store=output / "store")
    path = output / f"detector.{recipe.name.split(' ')[0]}.onnx"
    result.save(path)
    seconds = time.perf_counter() - started
    latency = result.evaluation.latency
    assert latency is not None
    score = embedded.ScenePrecision(scenes)(path)
    return DemoRow(recipe.name, f"{score:.4f}", _kilobytes(path), f"{latency.ratio:.2f}", f"{seconds:.1f} s")


def _kilobytes(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.0f}"
