"""``quantry presets``: list the presets."""

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from quantry.cli.frame import current_output
from quantry.recipe import PRESETS, Preset, find_preset, to_plain, to_yaml
from quantry.recipe.json_result import JsonResult, PlainRecipe

_RECOMMENDED = ("auto", "recommended")
_FINETUNINGS = ("ADAROUND", "ADAQUANT")
_WIDE = 110


@dataclass(frozen=True)
class PresetEntry(JsonResult):
    """A preset.

    Attributes:
        name: Its name.
        summary: What it sets.
        pending: What is not yet supported.
        targets: Targets that take it.
    """

    name: str
    summary: str
    pending: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class PresetsResult(JsonResult):
    """The presets.

    Attributes:
        presets: Recommended ones first.
    """

    presets: tuple[PresetEntry, ...]


@dataclass(frozen=True)
class PresetResult(PresetsResult):
    """One preset.

    Attributes:
        presets: The preset.
        recipe: All fields of its recipe.
    """

    recipe: PlainRecipe


def presets(
    name: Annotated[str | None, typer.Argument(help="Print this preset's recipe as YAML.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Include the variants with finetuning.")] = False,
) -> None:
    """List the presets, or print one as a recipe file to start from."""
    output = current_output()
    if name is not None:
        preset = find_preset(name)
        output.answer.print(to_yaml(preset.recipe), end="", markup=False, highlight=False, soft_wrap=True)
        output.result(PresetResult((_entry(name, preset),), to_plain(preset.recipe)))
        return
    table = Table(title="Presets, recommended ones first", box=SIMPLE)
    table.add_column("name", no_wrap=True)
    table.add_column("what it sets")
    # A narrow terminal has no room for them; `quantry targets` has them too.
    wide = output.answer.width >= _WIDE
    if wide:
        table.add_column("targets")
    listed = {key: PRESETS[key] for key in sorted(PRESETS, key=_rank) if show_all or not _is_variant(key)}
    for key, preset in listed.items():
        missing = f"; not yet supported: {'; '.join(preset.pending)}" if preset.pending else ""
        table.add_row(key, f"{preset.summary}{missing}", *([", ".join(_taken_by(key))] if wide else []))
    output.answer.print(table)
    hidden = len(PRESETS) - len(listed)
    if hidden:
        output.console.print(
            f"{hidden} more add finetuning to these, such as XINT8_ADAROUND; list them with `quantry presets --all`.",
            soft_wrap=True,
        )
    output.result(PresetsResult(tuple(_entry(key, preset) for key, preset in listed.items())))


def _entry(name: str, preset: Preset) -> PresetEntry:
    return PresetEntry.of(preset, name=name, targets=_taken_by(name.upper()))


def _taken_by(name: str) -> tuple[str, ...]:
    """Return the targets that accept a preset."""
    from quantry.targets import TARGETS

    return tuple(target.name for target in TARGETS.values() if name in target.presets)


def _rank(name: str) -> bool:
    """Sort recommended recipes first; the others keep the order of the table."""
    return not name.casefold().startswith(_RECOMMENDED)


def _is_variant(name: str) -> bool:
    """Whether a preset is another one plus finetuning."""
    base, _, suffix = name.rpartition("_")
    return suffix in _FINETUNINGS and base in PRESETS
