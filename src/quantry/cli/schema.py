"""``quantry schema``: JSON Schema of recipe files, search files and of the output of every command."""

import dataclasses
import json
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantry.cli.frame import current_output
from quantry.errors import RecipeError, nearest_spelling

if TYPE_CHECKING:
    from quantry.recipe.json_schema import RecipeSchemas

_KINDS = ("recipe", "search")
_OUTPUT = "The schema of what a command, such as quantize or 'recipe show', prints with --json."


def schema(
    kind: Annotated[str, typer.Argument(help="recipe or search for files; with --output, a command.")],
    output: Annotated[bool, typer.Option("--output", help=_OUTPUT)] = False,
) -> None:
    """Print the JSON Schema of recipe files or search files, or of what a command prints with --json."""
    from quantry.cli.json_schemas import RESULTS, output_schema

    known = tuple(RESULTS) if output else _KINDS
    if kind not in known:
        raise RecipeError(f"the kind must be one of {', '.join(known)}, got {kind!r}{nearest_spelling(kind, known)}")
    from quantry.recipe.json_schema import recipe_schema

    found = output_schema(kind) if output else recipe_schema() if kind == "recipe" else search_schema()
    out = current_output()
    out.answer.print(json.dumps(found, indent=2), markup=False, highlight=False, soft_wrap=True)
    out.result(found)


def search_schema() -> dict[str, Any]:
    """Return the JSON Schema of a search configuration."""
    from quantry.autosearch import SearchOptions
    from quantry.cli.search_job import SearchJob
    from quantry.data.images import ImageOptions
    from quantry.recipe.json_schema import DIALECT, RecipeSchemas

    schemas = RecipeSchemas()
    job = {part.name for part in dataclasses.fields(SearchJob)} - {"options", "images"}
    names = {**_hints(SearchJob, job), **_hints(SearchOptions, set(SearchOptions.names()))}
    properties = {name: _schema(hint, schemas) for name, hint in names.items()}
    images = _hints(ImageOptions, {part.name for part in dataclasses.fields(ImageOptions)})
    properties["images"] = {
        "type": "object",
        "properties": {name: schemas.schema(hint) for name, hint in images.items()},
        "additionalProperties": False,
    }
    # YAML has no fractions: 1/255 is text.
    properties["images"]["properties"]["scale"] = {"type": ["number", "string"]}
    return {
        "$schema": DIALECT,
        "title": "quantry search",
        "type": "object",
        "properties": properties,
        "required": ["model"],
        "additionalProperties": False,
        "$defs": schemas.definitions,
    }


def _hints(cls: Any, names: set[str]) -> dict[str, Any]:
    import sys

    scope = {**vars(sys.modules[cls.__module__]), "SearchOptions": Any}
    return {
        name: hint for name, hint in typing.get_type_hints(cls, scope).items() if name in names and hint is not None
    }


def _schema(hint: Any, schemas: "RecipeSchemas") -> dict[str, Any]:
    """Return the schema of an option; values of types that only Python can express are not checked."""
    members = typing.get_args(hint) or (hint,)
    if any(member is Path for member in members):
        return {"type": ["string", "null"]}
    found = schemas.schema(hint)
    return {} if {} in found.get("anyOf", []) else found
