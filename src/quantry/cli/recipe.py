"""``quantry recipe``: print, compare and validate recipes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from quantry.cli.frame import ExitCode, current_output
from quantry.errors import RecipeError
from quantry.recipe import brief, load_recipe, resolve_recipe, to_plain, to_yaml

_RECIPE = "Name of a preset, or a recipe file."


def show(recipe: Annotated[str, typer.Argument(help=_RECIPE)]) -> None:
    """Print a recipe with all its fields as YAML."""
    found, _ = resolve_recipe(recipe)
    out = current_output()
    out.answer.print(to_yaml(found), end="", markup=False, highlight=False, soft_wrap=True)
    out.result({"recipe": to_plain(found)})


def diff(
    first: Annotated[str, typer.Argument(help=_RECIPE)],
    second: Annotated[str, typer.Argument(help=_RECIPE)],
) -> None:
    """Print the fields in which two recipes differ."""
    ours, theirs = resolve_recipe(first)[0], resolve_recipe(second)[0]
    differences = ours.diff(theirs)
    out = current_output()
    if differences:
        table = Table("field", ours.name, theirs.name, box=None)
        for one in differences:
            table.add_row(one.path, brief(one.ours), brief(one.theirs))
        out.answer.print(table, markup=False, highlight=False)
    else:
        out.answer.print("the recipes are equal")
    out.result(
        {
            "first": ours.name,
            "second": theirs.name,
            "differences": [
                {"path": one.path, "first": brief(one.ours), "second": brief(one.theirs)} for one in differences
            ],
        }
    )


def validate(files: Annotated[list[Path], typer.Argument(help="Recipe files, YAML or JSON.")]) -> None:
    """Check recipe files; exit code 2 if one is not valid."""
    out = current_output()
    errors: dict[str, str | None] = {}
    for file in files:
        try:
            load_recipe(file)
        except RecipeError as error:
            errors[str(file)] = str(error)
        else:
            errors[str(file)] = None
        found = errors[str(file)]
        out.answer.print(
            f"{file}: {'valid' if found is None else found}", markup=False, highlight=False, soft_wrap=True
        )
    wrong = any(error is not None for error in errors.values())
    out.result(
        {"files": [{"file": file, "valid": error is None, "error": error} for file, error in errors.items()]},
        ExitCode.USAGE if wrong else ExitCode.GOOD,
    )
