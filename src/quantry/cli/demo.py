"""``quantry demo``: the embedded detector under several presets."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from quantry.recipe import (
    PRESETS,
    DerivedBias,
    EvaluateOptions,
    MinMax,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    TensorSpec,
)

_POWER_OF_TWO_INT8 = TensorSpec(scale=PowerOfTwoScale())

NAIVE = Recipe(
    name="power-of-two MinMax (naive)",
    plan=PlanOptions(activation=_POWER_OF_TWO_INT8, weight=_POWER_OF_TWO_INT8, bias=DerivedBias()),
    scale=ScaleOptions(activation=MinMax(), weight=MinMax()),
)
"""What a power-of-two NPU gets when nobody chooses: the extremes of every tensor, rounded to the nearest power."""

RECIPES: tuple[Recipe, ...] = (
    NAIVE,
    *(PRESETS[name].recipe for name in ("XINT8", "A8W8", "S8S8_AAWS", "U8S8_AAWS", "CPU_INT8", "A16W8")),
)

_ON_XINT8 = (
    "XINT8 follows the arithmetic of AMD's NPU: Sigmoid becomes HardSigmoid (see docs/npu.md), so that on this SiLU "
    "model it scores below naive unless prepare.npu.sigmoid_to_hard_sigmoid is false."
)
_ON_TIME = (
    "onnxruntime simulates signed int8 and 16 bits in float on CPUs, so their time says nothing about an NPU; "
    "x float is the time over the float model's."
)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the quantized models.")] = Path("demo-out"),
    scenes: Annotated[int, typer.Option(help="Labelled scenes to evaluate on.")] = 200,
    samples: Annotated[int, typer.Option(help="Scenes to calibrate on.")] = 32,
) -> None:
    """Quantize the embedded detector with several presets and print what each costs and keeps."""
    from quantry import demo as embedded
    from quantry.evaluate import deployment_session

    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    model, data = embedded.model_path(), embedded.calibration_inputs(samples)
    console.print(
        f"A detector of {len(embedded.CLASS_NAMES)} shapes, calibrated on {samples} scenes, "
        f"evaluated on {scenes} others."
    )
    table = _table()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("float model", total=len(RECIPES) + 1)
        reference = _scores(deployment_session(model), scenes)
        table.add_row("float", f"{reference['map']:.4f}", f"{reference['map50']:.4f}", _kilobytes(model), "1.00", "")
        for recipe in RECIPES:
            progress.update(task, advance=1, description=recipe.name)
            table.add_row(*_row(recipe, model, data, output, scenes))
    console.print(table)
    for line in (_ON_XINT8, _ON_TIME):
        console.print(line)
    console.print(
        f"The models are in [bold]{escape(str(output))}[/]; `quantry presets NAME` prints a recipe to start from.",
        soft_wrap=True,
    )


def _table() -> Table:
    table = Table(title="The embedded detector, quantized")
    table.add_column("recipe", no_wrap=True)
    for heading in ("mAP", "mAP50", "kB", "x float", "made in"):
        table.add_column(heading, justify="right")
    return table


def _row(recipe: Recipe, model: Path, data: Any, output: Path, scenes: int) -> tuple[str, ...]:
    from quantry.evaluate import simulation_session
    from quantry.quantization import quantize

    wanted = dataclasses.replace(recipe, evaluate=EvaluateOptions(latency_runs=20))
    started = time.perf_counter()
    result = quantize(model, data, wanted, store=output / "store")
    path = output / f"detector.{recipe.name.split(' ')[0]}.onnx"
    result.save(path)
    seconds = time.perf_counter() - started
    scores = _scores(simulation_session(path), scenes)
    latency = result.evaluation.latency
    assert latency is not None
    return (
        recipe.name,
        f"{scores['map']:.4f}",
        f"{scores['map50']:.4f}",
        _kilobytes(path),
        f"{latency.ratio:.2f}",
        f"{seconds:.1f} s",
    )


def _scores(session: Any, scenes: int) -> dict[str, float]:
    from quantry import demo as embedded

    def run(images: np.ndarray) -> np.ndarray:
        outputs = session.run(None, {embedded.INPUT_NAME: images})
        return np.asarray(outputs[0])

    return embedded.evaluate(run, scenes)


def _kilobytes(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.0f}"
