"""``quantry presets``: list the presets."""

from typing import Annotated, Any

import typer
from rich.table import Table

from quantry.cli.frame import current_output
from quantry.recipe import PRESETS, Preset, find_preset, to_plain, to_yaml

_FINETUNINGS = ("ADAROUND", "ADAQUANT")


def presets(
    name: Annotated[str | None, typer.Argument(help="Print this preset's recipe as YAML.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Include the variants with finetuning.")] = False,
) -> None:
    """List the presets, or print one as a recipe file to start from."""
    output = current_output()
    if name is not None:
        preset = find_preset(name)
        output.answer.print(to_yaml(preset.recipe), end="", markup=False, highlight=False, soft_wrap=True)
        output.result({"presets": [_plain(name, preset)], "recipe": to_plain(preset.recipe)})
        return
    table = Table(title="Presets", show_lines=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it sets")
    table.add_column("not yet supported")
    shown = {key: preset for key, preset in PRESETS.items() if show_all or not _is_variant(key)}
    for key, preset in shown.items():
        table.add_row(key, preset.summary, "; ".join(preset.pending))
    output.answer.print(table)
    hidden = len(PRESETS) - len(shown)
    if hidden:
        output.console.print(
            f"{hidden} more add finetuning to these, such as XINT8_ADAROUND; list them with `quantry presets --all`.",
            soft_wrap=True,
        )
    output.result({"presets": [_plain(key, preset) for key, preset in shown.items()]})


def _plain(name: str, preset: Preset) -> dict[str, Any]:
    return {"name": name, "summary": preset.summary, "pending": list(preset.pending)}


def _is_variant(name: str) -> bool:
    """Whether a preset is another one plus finetuning."""
    base, _, suffix = name.rpartition("_")
    return suffix in _FINETUNINGS and base in PRESETS
