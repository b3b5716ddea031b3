"""``quantry targets``: the deployment targets, their rules, and which of them run here."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantry.cli.frame import current_output
from quantry.recipe.json_result import JsonResult

if TYPE_CHECKING:
    from quantry.targets import Target


@dataclass(frozen=True)
class RuleEntry(JsonResult):
    """A rule of a target.

    Attributes:
        rule: Its name.
        text: What must hold.
        consequence: What happens otherwise.
        source: Where this is documented.
    """

    rule: str
    text: str
    consequence: str
    source: str


@dataclass(frozen=True)
class BackendEntry(JsonResult):
    """What runs models for a target here.

    Attributes:
        name: Its name.
        product: The package.
        version: The installed version; null if there is none.
        install: How to install it.
        licence: Its licence.
    """

    name: str
    product: str
    version: str | None
    install: str
    licence: str


@dataclass(frozen=True)
class TargetEntry(JsonResult):
    """A target.

    Attributes:
        name: Its name.
        summary: What it is.
        recommended: Recommended presets, best first.
        presets: Presets that it takes, cheapest first.
        rules: What it asks of a model.
        notes: Notes for the user.
        backend: What runs models for the target here; null if there is nothing.
    """

    name: str
    summary: str
    recommended: tuple[str, ...]
    presets: tuple[str, ...]
    rules: tuple[RuleEntry, ...]
    notes: tuple[str, ...]
    backend: BackendEntry | None


def targets(
    name: Annotated[
        str | None, typer.Argument(help="Print the rules and presets of this target, or of a .yaml or .py file.")
    ] = None,
) -> None:
    """List the deployment targets, or print the rules of one and the presets that it takes."""
    from quantry.targets import TARGETS, find_target

    output = current_output()
    if name is None:
        entries = tuple(_entry(target) for target in TARGETS.values())
        _list(output.answer, entries)
        output.result(entries)
    else:
        entry = _entry(find_target(name))
        _show(output.answer, entry)
        output.result(entry)


def _list(console: Console, entries: tuple[TargetEntry, ...]) -> None:
    table = Table(title="Targets", box=SIMPLE, pad_edge=False)
    for heading in ("name", "what it is", "recommended", "runs here"):
        table.add_column(heading, no_wrap=heading in ("name", "recommended"))
    for entry in entries:
        runs = _runs(entry.backend, unknown="rules only", missing="no")
        table.add_row(entry.name, escape(entry.summary), "\n".join(entry.recommended), escape(runs))
    console.print(table)
    console.print("`quantry targets NAME` prints the rules of one and the presets that it takes.", soft_wrap=True)


def _runs(backend: BackendEntry | None, unknown: str, missing: str) -> str:
    if backend is None:
        return unknown
    return f"yes, {backend.product} {backend.version}" if backend.version else missing


def _show(console: Console, entry: TargetEntry) -> None:
    missing = "" if entry.backend is None else f"no; {entry.backend.install}"
    runs = _runs(entry.backend, "no, only its rules are known", missing)
    console.print(f"[bold]{escape(entry.name)}[/]: {escape(entry.summary)}", soft_wrap=True)
    console.print(f"runs here: {escape(runs)}", soft_wrap=True)
    for note in entry.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    table = Table(title="Rules", show_lines=True)
    for heading in ("rule", "what must hold", "otherwise", "source"):
        table.add_column(heading, overflow="fold")
    for rule in entry.rules:
        table.add_row(*map(escape, (rule.rule, rule.text, rule.consequence, rule.source)))
    if entry.rules:
        console.print(table)
    console.print(f"recommended: {', '.join(entry.recommended)}", soft_wrap=True)
    console.print(f"presets, cheapest first: {', '.join(entry.presets)}", soft_wrap=True)


def _entry(target: "Target") -> TargetEntry:
    from quantry.targets import backend_of

    backend = backend_of(target)
    return TargetEntry.of(
        target,
        rules=tuple(RuleEntry.of(rule, rule=rule.name) for rule in target.rules),
        backend=None if backend is None else BackendEntry.of(backend, version=backend.version()),
    )
