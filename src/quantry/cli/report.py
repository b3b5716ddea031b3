"""``quantry report``: the page of one or several searches."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quantry.cli.console import check_output
from quantry.cli.frame import current_output
from quantry.errors import DataError
from quantry.recipe.json_result import JsonResult


@dataclass(frozen=True)
class ReportResult(JsonResult):
    """The report of searches.

    Attributes:
        report: The page.
        searches: The folders.
    """

    report: Path
    searches: tuple[Path, ...]


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Output folder of a search; several are compared with the first.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file; default: report.html in the first folder.")
    ] = None,
) -> None:
    """Write the HTML report of a search, running or finished, or compare several searches."""
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"the output folder of a search must exist, found nothing; at {folder}")
    if output is not None:
        check_output(output)
    from quantry.report import write_folder_report

    page = write_folder_report(folders, output)
    out = current_output()
    out.answer.print(str(page), highlight=False, markup=False, soft_wrap=True)
    out.result(ReportResult(page, tuple(folders)))
