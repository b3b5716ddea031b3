"""``quantry presets``: what the names stand for."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from quantry.recipe import PRESETS, Preset, find_preset, to_yaml


def presets(
    name: Annotated[str | None, typer.Argument(help="Print this preset's recipe as YAML.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List those too that are not whole yet.")] = False,
) -> None:
    """List the presets, or print one as a recipe file to start from."""
    if name is not None:
        typer.echo(to_yaml(find_preset(name).recipe), nl=False)
        return
    console = Console()
    table = Table(title="Presets", show_lines=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it sets")
    table.add_column("not yet part of it here")
    shown = {key: preset for key, preset in PRESETS.items() if show_all or not _lacks_its_algorithm(preset)}
    for key, preset in shown.items():
        table.add_row(key, preset.summary, "; ".join(preset.pending))
    console.print(table)
    hidden = len(PRESETS) - len(shown)
    if hidden:
        console.print(
            f"{hidden} more are named for a finetuning that is not there yet; `quantry presets --all` lists them.",
            soft_wrap=True,
        )


def _lacks_its_algorithm(preset: Preset) -> bool:
    return any("include_fast_ft" in pending for pending in preset.pending)
