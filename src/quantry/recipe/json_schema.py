"""JSON Schema of recipes, made from their types, so that editors complete and check recipe files."""

import dataclasses
import enum
import types
import typing
from typing import Any

from quantry.recipe.checked import type_hints
from quantry.recipe.recipe import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe file."""
    definitions: dict[str, Any] = {}
    root = schema_of(Recipe, definitions)
    fields = definitions.pop(root["$ref"].rpartition("/")[2])
    fields["properties"] = {"version": {"const": 1}, **fields["properties"]}
    return {"$schema": DIALECT, "title": "quantry recipe", **fields, "$defs": dict(sorted(definitions.items()))}


def schema_of(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of values of a type, as the codec of recipes writes them.

    Args:
        annotation: The type.
        definitions: Schemas of dataclasses by name; new ones are added.
    """
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(annotation), definitions)
    if origin is tuple:
        return {"type": "array", "items": schema_of(typing.get_args(annotation)[0], definitions)}
    if origin is typing.Literal:
        return {"enum": list(typing.get_args(annotation))}
    if dataclasses.is_dataclass(annotation):
        return _reference(annotation, definitions, with_kind=False)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {"enum": [member.value for member in annotation]}
    if annotation is type(None):
        return {"type": "null"}
    return {"type": _SCALARS[annotation]} if annotation in _SCALARS else {}


def _union(members: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    classes: list[Any] = [member for member in members if dataclasses.is_dataclass(member)]
    choices = [schema_of(member, definitions) for member in members if member not in classes]
    for member in classes:
        choices.append(_reference(member, definitions, with_kind=len(classes) > 1))
        required = [part.name for part in dataclasses.fields(member) if _is_required(part)]
        if not required:
            choices.append({"const": member.__name__})
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _reference(cls: Any, definitions: dict[str, Any], *, with_kind: bool) -> dict[str, Any]:
    """Return a reference to the schema of a dataclass; with a ``kind`` where there is a choice between types."""
    name = cls.__name__
    if name not in definitions:
        definitions[name] = {}  # a class may contain itself
        hints = type_hints(cls)
        properties = {part.name: _field(part, hints[part.name], definitions) for part in dataclasses.fields(cls)}
        required = [part.name for part in dataclasses.fields(cls) if _is_required(part)]
        definitions[name] = {
            "type": "object",
            "description": (cls.__doc__ or "").strip().partition("\n")[0],
            "properties": {"kind": {"const": name}, **properties},
            "required": required,
            "additionalProperties": False,
        }
    reference = {"$ref": f"#/$defs/{name}"}
    return {**reference, "required": ["kind"]} if with_kind else reference


def _field(part: "dataclasses.Field[Any]", annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    from quantry.recipe.codec import encode

    schema = schema_of(annotation, definitions)
    if part.default is dataclasses.MISSING or "$ref" in schema:
        return schema
    return {**schema, "default": encode(part.default, annotation)}


def _is_required(part: "dataclasses.Field[Any]") -> bool:
    return part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING
