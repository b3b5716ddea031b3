"""What a search found, as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantry.cli.score_format import score_format
from quantry.recipe import brief

if TYPE_CHECKING:
    from quantry.autosearch import SearchResult, Trial

_MOST_ROWS = 20
_WIDE = 110


def show_search(console: Console, result: "SearchResult", metric: str, again: str | None = None) -> None:
    """Print the trials, nearest to the float model first, and what the best one is; write all of it as a page.

    Args:
        console: Where to.
        result: What was found.
        metric: What the score is called.
        again: The command that quantizes the model with the best recipe; None where there is none.
    """
    # Only here: a command that is misspelt should not wait for the search to be loaded.
    from quantry.autosearch import by_difference

    ranked = by_difference(result.trials)
    names = [name for name in result.trials[0].objectives if name != "accuracy"] if result.trials else []
    # What was computed for a trial is in the log and in search.json; a narrow terminal has no room for it.
    wide = console.width >= _WIDE
    shown = ranked[:_MOST_ROWS]
    written = score_format([trial.score for trial in shown if trial.score is not None])
    reference = format(result.reference.value, written)
    table = Table(title=f"{len(result.trials)} trials; float model: {metric} {reference}", box=SIMPLE)
    for heading in ("trial", metric, "95 %", "drop", *names, "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("configuration", "computed") if wide else ("configuration",):
        table.add_column(heading, overflow="fold")
    for trial in shown:
        mark = "bold" if result.best is not None and trial.number == result.best.number else None
        row = _row(trial, names, written)
        table.add_row(*(row if wide else row[:-1]), style=mark)
    console.print(table)
    if len(ranked) > _MOST_ROWS:
        console.print(f"  and {len(ranked) - _MOST_ROWS} more, in search.json")
    _show_best(console, result, (metric, written), again)
    # Only here: it needs the parts that run models.
    from quantry.report import write_search_report

    page = write_search_report(result, result.output_dir / "report.html", f"search by {metric}")
    console.print(f"  {'report':6} [bold]{escape(str(page))}[/]", soft_wrap=True)


def _row(trial: "Trial", names: Sequence[str], written: str) -> tuple[str, ...]:
    if trial.score is None or trial.drop is None:
        failed = ("", "", *("" for _ in names))
        return (str(trial.number), "failed", *failed, f"{trial.seconds:.1f} s", escape(trial.error or ""), "")
    half = "" if trial.interval is None else f"±{(trial.interval[1] - trial.interval[0]) / 2:{written}}"
    mark = "~" if trial.state == "raced" else ""
    objectives = (f"{trial.objectives[name]:.4g}" if name in trial.objectives else "" for name in names)
    computed = " ".join(trial.computed) if trial.same_as is None else f"same as {trial.same_as}"
    return (
        str(trial.number),
        f"{mark}{trial.score:{written}}",
        half,
        f"{trial.drop:{written}}",
        *objectives,
        f"{trial.seconds:.1f} s",
        escape(_assignment(trial)),
        computed or "nothing",
    )


def _assignment(trial: "Trial") -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {brief(value)}" for name, value in trial.assignment.items())


def _show_best(console: Console, result: "SearchResult", judged: tuple[str, str], again: str | None) -> None:
    metric, written = judged
    console.print(f"stopped: {escape(result.stopped_by)}; {result.seconds:.1f} s")
    for note in result.notes:
        console.print(f"  note: {escape(note)}", soft_wrap=True)
    best = result.best
    if best is None or best.score is None:
        return
    console.print(
        f"best: trial {best.number}, {metric} {best.score:{written}}, float {result.reference.value:{written}}"
    )
    for what, path in (("model", result.best_model), ("recipe", result.best_recipe)):
        console.print(f"  {what:6} [bold]{escape(str(path))}[/]", soft_wrap=True)
    if again is None:
        return
    console.print(f"quantize with its recipe: {escape(again)}", soft_wrap=True, highlight=False)
    listed = result.output_dir / "calibration.txt"
    console.print(f"it was calibrated on the samples in {escape(str(listed))}", soft_wrap=True, highlight=False)
