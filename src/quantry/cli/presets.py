"""``quantry presets``: what the names stand for."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from quantry.recipe import PRESETS, find_preset, to_yaml


def presets(
    name: Annotated[str | None, typer.Argument(help="Print this preset's recipe as YAML.")] = None,
) -> None:
    """List the presets, or print one as a recipe file to start from."""
    if name is not None:
        typer.echo(to_yaml(find_preset(name).recipe), nl=False)
        return
    table = Table(title="Presets", show_lines=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it sets")
    table.add_column("not yet part of it here")
    for key, preset in PRESETS.items():
        table.add_row(key, preset.summary, "; ".join(preset.pending))
    Console().print(table)
