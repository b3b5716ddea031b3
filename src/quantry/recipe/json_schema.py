"""JSON Schema from dataclasses: of recipes, so that editors complete and check them, and of other plain data."""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from quantry.recipe.checked import field_docs, type_hints
from quantry.recipe.json_result import plain
from quantry.recipe.option_fields import option_types
from quantry.recipe.recipe import Recipe

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string", types.NoneType: "null"}


class TypeSchemas:
    """Writes the schemas of types: those of a dataclass from its fields, and their descriptions from its docstring."""

    def schema(self, annotation: Any) -> Schema:
        """Return the schema of a type's values; what the type does not say about them is not checked.

        Args:
            annotation: The type. The pairs of an `Annotated` type, such as ``("minimum", 0)``, are added to its schema.
        """
        origin, members = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is Annotated:
            return {**self.schema(members[0]), **plain(dict(members[1:]))}
        if origin in (typing.Union, types.UnionType):
            return self.union(members)
        if origin is tuple:
            size = {} if ... in members else {"minItems": len(members), "maxItems": len(members)}
            return {"type": "array", "items": self.schema(members[0]), **size}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.schema(members[1])}
        if origin is typing.Literal:
            return {"enum": list(members)}
        if dataclasses.is_dataclass(annotation):
            return self.dataclass(annotation)
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return {"enum": [member.value for member in annotation]}
        return {"type": _SCALARS[annotation]} if annotation in _SCALARS else {}

    def union(self, members: tuple[Any, ...]) -> Schema:
        """Return the schema of values of one of several types."""
        return {"anyOf": [self.schema(member) for member in members]}

    def dataclass(self, cls: Any) -> Schema:
        """Return the schema of a dataclass's fields, by their names."""
        docs, hints = field_docs(cls), self.hints(cls)
        properties = {
            field.name: {**self.field(field, hints[field.name]), "description": docs.get(field.name, "")}
            for field in dataclasses.fields(cls)
        }
        return {
            "type": "object",
            "description": (cls.__doc__ or "").strip().partition("\n")[0],
            "properties": properties,
            "required": [field.name for field in dataclasses.fields(cls) if self.is_required(field)],
            "additionalProperties": False,
        }

    def hints(self, cls: Any) -> dict[str, Any]:
        """Return the types of a dataclass's fields."""
        return type_hints(cls)

    def field(self, field: "dataclasses.Field[Any]", annotation: Any) -> Schema:  # noqa: ARG002 - for subclasses
        """Return the schema of a field."""
        return self.schema(annotation)

    def is_required(self, field: "dataclasses.Field[Any]") -> bool:
        """Whether plain data must hold a field."""
        return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


class OptionSchemas(TypeSchemas):
    """Writes the schemas of options classes, see `quantry.recipe.option_fields`."""

    def hints(self, cls: Any) -> dict[str, Any]:
        """Return the types of a dataclass's fields."""
        return option_types(cls)

    def field(self, field: "dataclasses.Field[Any]", annotation: Any) -> Schema:
        """Return the schema of a field with its default; a list of one value needs no brackets."""
        schema = self.schema(annotation)
        if typing.get_origin(annotation) is tuple and ... in typing.get_args(annotation):
            schema = {"anyOf": [schema, schema["items"]]}
        return schema if field.default in (dataclasses.MISSING, None) else {**schema, "default": plain(field.default)}


class RecipeSchemas(TypeSchemas):
    """Writes the schemas of options as the codec of recipes writes them; those of dataclasses are `definitions`."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def union(self, members: tuple[Any, ...]) -> Schema:
        """Return the schema of a choice between types: a name, or a mapping with a ``kind`` where there are several."""
        classes: list[Any] = [member for member in members if dataclasses.is_dataclass(member)]
        choices = [self.schema(member) for member in members if member not in classes]
        for member in classes:
            reference = self.schema(member)
            choices.append({**reference, "required": ["kind"]} if len(classes) > 1 else reference)
            if not any(self.is_required(field) for field in dataclasses.fields(member)):
                choices.append({"const": member.__name__})
        return choices[0] if len(choices) == 1 else {"anyOf": choices}

    def dataclass(self, cls: Any) -> Schema:
        """Return a reference to the schema of a dataclass."""
        name = cls.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a class may contain itself
            schema = super().dataclass(cls)
            self.definitions[name] = {**schema, "properties": {"kind": {"const": name}, **schema["properties"]}}
        return {"$ref": f"#/$defs/{name}"}

    def field(self, field: "dataclasses.Field[Any]", annotation: Any) -> Schema:
        """Return the schema of a field with its default."""
        from quantry.recipe.codec import encode

        schema = self.schema(annotation)
        if field.default is dataclasses.MISSING or "$ref" in schema:
            return schema
        return {**schema, "default": encode(field.default, annotation)}


def recipe_schema() -> Schema:
    """Return the JSON Schema of a recipe file."""
    schemas = RecipeSchemas()
    root = schemas.schema(Recipe)
    schema = schemas.definitions.pop(root["$ref"].rpartition("/")[2])
    schema["properties"] = {"version": {"const": 1}, **schema["properties"]}
    return {"$schema": DIALECT, "title": "quantry recipe", **schema, "$defs": dict(sorted(schemas.definitions.items()))}
