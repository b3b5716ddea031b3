"""``quantry presets``: list the presets."""

from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from quantry.cli.frame import current_output
from quantry.recipe import PRESETS, Preset, find_preset, to_plain, to_yaml

_RECOMMENDED = ("auto", "recommended")
_FINETUNINGS = ("ADAROUND", "ADAQUANT")
_WIDE = 110


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
    table = Table(title="Presets, recommended ones first", box=SIMPLE)
    table.add_column("name", no_wrap=True)
    table.add_column("what it sets")
    # A narrow terminal has no room for them; `quantry targets` has them too.
    wide = output.answer.width >= _WIDE
    if wide:
        table.add_column("targets")
    shown = {key: PRESETS[key] for key in sorted(PRESETS, key=_rank) if show_all or not _is_variant(key)}
    for key, preset in shown.items():
        missing = f"; not yet supported: {'; '.join(preset.pending)}" if preset.pending else ""
        table.add_row(key, f"{preset.summary}{missing}", *([", ".join(_taken_by(key))] if wide else []))
    output.answer.print(table)
    hidden = len(PRESETS) - len(shown)
    if hidden:
        output.console.print(
            f"{hidden} more add finetuning to these, such as XINT8_ADAROUND; list them with `quantry presets --all`.",
            soft_wrap=True,
        )
    output.result({"presets": [_plain(key, preset) for key, preset in shown.items()]})


def _plain(name: str, preset: Preset) -> dict[str, Any]:
    return {
        "name": name,
        "summary": preset.summary,
        "pending": list(preset.pending),
        "targets": _taken_by(name.upper()),
    }


def _taken_by(name: str) -> list[str]:
    """Return the targets that accept a preset."""
    from quantry.targets import TARGETS

    return [target.name for target in TARGETS.values() if name in target.presets]


def _rank(name: str) -> bool:
    """Sort recommended recipes first; the others keep the order of the table."""
    return not name.casefold().startswith(_RECOMMENDED)


def _is_variant(name: str) -> bool:
    """Whether a preset is another one plus finetuning."""
    base, _, suffix = name.rpartition("_")
    return suffix in _FINETUNINGS and base in PRESETS
