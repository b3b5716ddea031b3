"""``quantry schema``: JSON Schema of recipe files, search files and of the output of every command."""

import json
from typing import Annotated, Any

import typer

from quantry.cli.frame import current_output
from quantry.errors import require_choice

_KINDS = ("recipe", "search")
_OUTPUT = "The schema of what a command, such as quantize or 'recipe show', prints with --json."


def schema(
    kind: Annotated[str, typer.Argument(help="recipe or search for files; with --output, a command.")],
    output: Annotated[bool, typer.Option("--output", help=_OUTPUT)] = False,
) -> None:
    """Print the JSON Schema of recipe files or search files, or of what a command prints with --json."""
    from quantry.cli.json_schemas import RESULTS, output_schema

    require_choice("the kind", kind, RESULTS if output else _KINDS)
    from quantry.recipe.json_schema import recipe_schema

    result = output_schema(kind) if output else recipe_schema() if kind == "recipe" else search_schema()
    out = current_output()
    out.answer.print(json.dumps(result, indent=2), markup=False, highlight=False, soft_wrap=True)
    out.result(result)


def search_schema() -> dict[str, Any]:
    """Return the JSON Schema of a search configuration."""
    from quantry.cli.search_job import SearchJob
    from quantry.data.images import ImageOptions
    from quantry.recipe.json_schema import DIALECT, OptionSchemas
    from quantry.recipe.search_options import SearchOptions

    schemas = OptionSchemas()
    job = schemas.dataclass(SearchJob)
    del job["properties"]["options"]
    images = schemas.dataclass(ImageOptions)
    # YAML has no fractions: 1/255 is text.
    images["properties"]["scale"]["type"] = ["number", "string"]
    job["properties"] |= {"images": images, **schemas.dataclass(SearchOptions)["properties"]}
    return {"$schema": DIALECT, "title": "quantry search", **job}
