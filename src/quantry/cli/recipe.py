"""``quantry recipe``: print, compare and validate recipes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from quantry.cli.frame import ExitCode, current_output
from quantry.errors import RecipeError
from quantry.recipe import brief, load_recipe, resolve_recipe, to_plain, to_yaml
from quantry.recipe.json_result import JsonResult, PlainRecipe

_RECIPE = "Name of a preset, or a recipe file."


@dataclass(frozen=True)
class ShowResult(JsonResult):
    """A recipe.

    Attributes:
        recipe: All its fields.
    """

    recipe: PlainRecipe


@dataclass(frozen=True)
class FieldDifference(JsonResult):
    """A field in which two recipes differ.

    Attributes:
        path: The field.
        first: Its value in the first recipe.
        second: Its value in the second.
    """

    path: str
    first: str
    second: str


@dataclass(frozen=True)
class DiffResult(JsonResult):
    """How two recipes differ.

    Attributes:
        first: Name of the first.
        second: Name of the second.
        differences: The fields that differ.
    """

    first: str
    second: str
    differences: tuple[FieldDifference, ...]


@dataclass(frozen=True)
class CheckedFile(JsonResult):
    """A file that was checked.

    Attributes:
        file: The file.
        valid: Whether it can be used.
        error: What is wrong; null if nothing is.
    """

    file: Path
    valid: bool
    error: str | None


@dataclass(frozen=True)
class ValidateResult(JsonResult):
    """Which recipe files can be used.

    Attributes:
        files: The files, in the order given.
    """

    files: tuple[CheckedFile, ...]


def show(recipe: Annotated[str, typer.Argument(help=_RECIPE)]) -> None:
    """Print a recipe with all its fields as YAML."""
    resolved, _ = resolve_recipe(recipe)
    out = current_output()
    out.answer.print(to_yaml(resolved), end="", markup=False, highlight=False, soft_wrap=True)
    out.result(ShowResult(to_plain(resolved)))


def diff(
    first: Annotated[str, typer.Argument(help=_RECIPE)],
    second: Annotated[str, typer.Argument(help=_RECIPE)],
) -> None:
    """Print the fields in which two recipes differ."""
    ours, theirs = resolve_recipe(first)[0], resolve_recipe(second)[0]
    differences = tuple(
        FieldDifference(entry.path, brief(entry.ours), brief(entry.theirs)) for entry in ours.diff(theirs)
    )
    out = current_output()
    if differences:
        table = Table("field", ours.name, theirs.name, box=None)
        for entry in differences:
            table.add_row(entry.path, entry.first, entry.second)
        out.answer.print(table, markup=False, highlight=False)
    else:
        out.answer.print("the recipes are equal")
    out.result(DiffResult(ours.name, theirs.name, differences))


def validate(files: Annotated[list[Path], typer.Argument(help="Recipe files, YAML or JSON.")]) -> None:
    """Check recipe files; exit code 2 if one is not valid."""
    out = current_output()
    checked: list[CheckedFile] = []
    for file in files:
        try:
            load_recipe(file)
        except RecipeError as error:
            checked.append(CheckedFile(file, valid=False, error=str(error)))
        else:
            checked.append(CheckedFile(file, valid=True, error=None))
        out.answer.print(f"{file}: {checked[-1].error or 'valid'}", markup=False, highlight=False, soft_wrap=True)
    is_valid = all(entry.valid for entry in checked)
    out.result(ValidateResult(tuple(checked)), ExitCode.GOOD if is_valid else ExitCode.USAGE)
