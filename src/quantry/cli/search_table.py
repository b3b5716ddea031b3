"""The result of a search as a table in the terminal."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from quantry.cli.frame import Output

if TYPE_CHECKING:
    from quantry.autosearch import SearchResult

_MAX_ROWS = 20
_WIDE = 140

# Digits of scores: four decimals from 0.1 on, four to eight significant digits below, exponents below 1e-5.
_DIGITS, _MAX_DIGITS = 4, 8
_LARGE, _TINY = 0.1, 1e-5


def show_search(output: Output, result: "SearchResult", metric: str, again: str | None = None) -> Path:
    """Print the trials, smallest drop first, and the best one; also write an HTML report.

    Args:
        output: Where to print.
        result: The result of the search.
        metric: Name of the score.
        again: The command that quantizes the model with the best recipe; None prints none.

    Returns:
        The report.
    """
    console = output.console
    # Imported on use: a misspelled command should not wait for the search to be imported.
    from quantry.autosearch import by_drop, cells, trial_texts

    ranked = by_drop(result.trials)
    names = [name for name in result.trials[0].objectives if name != "accuracy"] if result.trials else []
    # The log and search.json also say what was computed for a trial; a narrow terminal has no room for it.
    wide = console.width >= _WIDE
    rows = ranked[:_MAX_ROWS]
    written = score_format([trial.score for trial in rows if trial.score is not None])
    reference = format(result.reference.value, written)
    table = Table(title=f"{len(result.trials)} trials; float model: {metric} {reference}", box=SIMPLE)
    numbers = ("trial", "score", "95 %", "drop", *names, "seconds")
    texts = ("configuration", "computed") if wide else ("configuration",)
    for name in numbers:
        table.add_column(metric if name == "score" else name, justify="right", no_wrap=True)
    for name in texts:
        table.add_column(name, overflow="fold")
    for trial in rows:
        row = cells(trial_texts(trial, number_text=lambda value: format(value, written)), (*numbers, *texts))
        is_best = result.best is not None and trial.number == result.best.number
        table.add_row(*map(escape, row), style="bold" if is_best else None)
    console.print(table)
    if len(ranked) > _MAX_ROWS:
        console.print(f"  and {len(ranked) - _MAX_ROWS} more, in search.json")
    # Imported on use: it imports onnxruntime.
    from quantry.report import write_search_report

    page = write_search_report(result, result.output_dir / "report.html")
    _show_best(output, result, (metric, written), page, again)
    if output.quiet and result.best_model is not None:
        output.answer.print(str(result.best_model), highlight=False, markup=False)
    return page


def _show_best(output: Output, result: "SearchResult", score: tuple[str, str], page: Path, again: str | None) -> None:
    metric, written = score
    console = output.console
    console.print(f"stopped: {escape(str(result.stopped_by))}; {result.seconds:.1f} s")
    for note in result.notes:
        output.item("  note: ", note)
    best = result.best
    if best is not None and best.score is not None:
        console.print(
            f"best: trial {best.number}, {metric} {best.score:{written}}, float {result.reference.value:{written}}"
        )
        for what, path in (("model", result.best_model), ("recipe", result.best_recipe)):
            console.print(f"  {what:6} [bold]{escape(str(path))}[/]", soft_wrap=True)
    console.print(f"  {'report':6} [bold]{escape(str(page))}[/]", soft_wrap=True)
    if best is None or again is None:
        return
    console.print(f"quantize with its recipe: {escape(again)}", soft_wrap=True, highlight=False)
    listed = result.output_dir / "calibration.txt"
    console.print(f"its calibration samples are listed in {escape(str(listed))}", soft_wrap=True, highlight=False)


def score_format(scores: Sequence[float]) -> str:
    """Return the format specification for all scores of a table.

    Four decimals, as accuracies are usually written. If the best score is small, such as an error, four significant
    digits of it, and more if different scores would otherwise look equal.

    Args:
        scores: The scores shown, best first.

    Returns:
        A format specification.

    Example:
        >>> score_format([0.7917, 0.3778]), score_format([0.00012, 0.0003]), score_format([1.2e-8])
        ('.4f', '.7f', '.3e')
    """
    # The first score that is not 0: a perfect error of 0 has no significant digits.
    best = next((abs(score) for score in scores if score != 0.0), 0.0)
    if best == 0.0 or best >= _LARGE or not math.isfinite(best):
        return f".{_DIGITS}f"
    choices = [_significant(best, digits) for digits in range(_DIGITS, _MAX_DIGITS + 1)]
    distinct = (choice for choice in choices if len({format(score, choice) for score in scores}) == len(set(scores)))
    return next(distinct, choices[-1])


def _significant(best: float, digits: int) -> str:
    """Return the format that shows this many significant digits of the best score."""
    if best < _TINY:
        return f".{digits - 1}e"
    return f".{digits - 1 - math.floor(math.log10(best))}f"
