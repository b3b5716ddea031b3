"""``quantry placement``: what runs where on a target."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantry.cli.frame import ExitCode, current_output
from quantry.cli.image_arguments import ImageArguments
from quantry.cli.model_data import samples_for
from quantry.recipe.json_result import JsonResult

if TYPE_CHECKING:
    from quantry.targets import PlacedNode, Placement


@dataclass(frozen=True)
class PlacementResult(JsonResult):
    """What runs where on a target.

    Attributes:
        model: The model.
        target: The target.
        summary: One line.
        nodes: One entry per node.
    """

    model: Path
    target: str
    summary: str
    nodes: "tuple[PlacedNode, ...]"


def placement(
    model: Annotated[Path, typer.Argument(help="ONNX model, quantized or float.")],
    target: Annotated[str, typer.Option(help="Target with a backend; see `quantry targets`.")] = "ort-cpu",
    data: Annotated[Path | None, typer.Option("--data", "-d", help="Data; the first sample is run.")] = None,
    *,
    images: ImageArguments,
) -> None:
    """Show which kernel computes each node on a target, and why not; exit code 3 if a node falls back."""
    from quantry.targets import place

    feeds = next(iter(samples_for(model, data, images.given(), 1)))
    placed = place(model, target, feeds)
    output = current_output()
    _show(output.answer, placed)
    output.result(
        PlacementResult.of(placed, model=model), ExitCode.NOT_GOOD_ENOUGH if placed.elsewhere else ExitCode.GOOD
    )


def _show(console: Console, placed: "Placement") -> None:
    table = Table(title=f"Placement on {placed.target}")
    for heading in placed.rows[0] if placed.rows else ():
        table.add_column(heading, justify="right" if heading == "ms" else "left", overflow="fold")
    for row in placed.rows:
        table.add_row(*map(escape, row.values()))
    console.print(table)
    console.print(escape(placed.summary), soft_wrap=True)
