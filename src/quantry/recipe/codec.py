"""Reading and writing of recipes: plain data, JSON, YAML, files and preset names.

A choice between types is written as its name, ``activation: MinMax``, or with its options,
``activation: {kind: Percentile, percentile: 99.99}``. Fields with their default value may be omitted when reading;
writing includes every field.
"""

import dataclasses
import enum
import json
import logging
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.files import write_file
from quantry.notes import Note, NoteKind
from quantry.recipe.checked import type_hints
from quantry.recipe.plain_text import json_value, yaml_value
from quantry.recipe.presets import find_preset
from quantry.recipe.recipe import Recipe

VERSION = 1
_KIND = "kind"
_LOG = logging.getLogger("quantry")

_REMOVED: Mapping[str, str] = {
    "recipe.equalize.absorb": "high-bias absorption changed no measured model and was removed",
    "recipe.evaluate.fall_back": "a recipe runs as it is; the recipe `auto` tries simpler ones",
    "recipe.evaluate.faster_in_float": "a recipe runs as it is; the recipe `auto` measures what is faster in float",
    "recipe.equalize.split": "outlier splitting was removed; `groups` gains more for the same weights",
}
"""Options that older recipe files still have, which are ignored, and why."""


def to_plain(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as nested dicts, lists, strings, numbers and booleans.

    Args:
        recipe: The recipe to write.

    Returns:
        Plain data that `from_plain` turns back into an equal recipe.
    """
    return {"version": VERSION, **_encode_fields(recipe)}


def from_plain(plain: Mapping[str, Any]) -> Recipe:
    """Read a recipe from plain data.

    Args:
        plain: The result of `to_plain`, or a hand-written part of one.

    Returns:
        The recipe.

    Raises:
        RecipeError: A key or a value is unknown; the message has its path and the nearest spelling.
    """
    if not isinstance(plain, Mapping):
        raise RecipeError(f"a recipe must be a mapping of stage names to options, got {type(plain).__name__}")
    version = plain.get("version", VERSION)
    if version != VERSION:
        raise RecipeError(f"recipe version must be {VERSION}, got {version!r}, which another release of quantry wrote")
    recipe = _decode_dataclass(Recipe, {key: value for key, value in plain.items() if key != "version"}, "recipe")
    assert isinstance(recipe, Recipe)
    return recipe


def to_json(recipe: Recipe) -> str:
    """Return the recipe as JSON text with a fixed key order."""
    return json.dumps(to_plain(recipe), indent=2)


def from_json(text: str) -> Recipe:
    """Read a recipe from JSON text."""
    return from_plain(json_value(text, "a recipe"))


def to_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML text with a fixed key order."""
    import yaml

    return yaml.safe_dump(to_plain(recipe), sort_keys=False)


def from_yaml(text: str) -> Recipe:
    """Read a recipe from YAML text."""
    plain = yaml_value(text, "a recipe")
    if plain is None:
        raise RecipeError("a recipe must hold options, got an empty text; use {} for all defaults")
    return from_plain(plain)


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe file; ``.json`` is JSON and everything else YAML.

    Args:
        path: The file.

    Raises:
        RecipeError: The file is missing or is not a recipe.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(f"the recipe file must exist, got {file}, which does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"a recipe file must be readable text, got {file}: {error}") from error
    try:
        return from_json(text) if file.suffix == ".json" else from_yaml(text)
    except RecipeError as error:
        raise RecipeError(f"{error}; in {file}") from error


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write a recipe file atomically; ``.json`` is JSON and everything else YAML.

    Raises:
        FileKindError: The path is a link, pipe, device or folder.
    """
    file = Path(path)
    write_file(file, to_json(recipe) if file.suffix == ".json" else to_yaml(recipe))


def _encode_fields(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    hints = type_hints(cls)
    return {entry.name: encode(getattr(value, entry.name), hints[entry.name]) for entry in dataclasses.fields(value)}


def encode(value: Any, annotation: Any) -> Any:
    """Return a dataclass, enumeration member, tuple or scalar as plain data for `decode`.

    Args:
        value: The value.
        annotation: Its declared type; a choice between types is written with its ``kind``.
    """
    if dataclasses.is_dataclass(value):
        fields = _encode_fields(value)
        if not fields:
            return type(value).__name__
        return fields if dataclasses.is_dataclass(annotation) else {_KIND: type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [encode(item, typing.get_args(annotation)[0]) for item in value]
    return value


def decode(annotation: Any, value: Any, path: str) -> Any:
    """Read what `encode` wrote.

    Args:
        annotation: The declared type.
        value: Plain data.
        path: Path of the value, for messages.

    Raises:
        RecipeError: The data does not fit the type.
    """
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(annotation), value, path)
    if origin is tuple:
        return _decode_tuple(typing.get_args(annotation)[0], value, path)
    if dataclasses.is_dataclass(annotation):
        return _decode_union((annotation,), value, path)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _decode_enum(annotation, value, path)
    return _decode_scalar(annotation, value, path)


def _decode_union(members: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in members:
        return None
    choices = {member.__name__: member for member in members if isinstance(member, type) and member is not type(None)}
    choices = {name: member for name, member in choices.items() if dataclasses.is_dataclass(member)}
    if not choices:
        (scalar,) = (member for member in members if member is not type(None))
        return decode(scalar, value, path)
    if isinstance(value, str):
        return _decode_dataclass(_choose(choices, value, path), {}, path)
    if not isinstance(value, Mapping):
        raise RecipeError(f"{path} must be one of {sorted(choices)} or a mapping with a 'kind', got {value!r}")
    # "kind" may be omitted where there is only one choice.
    kind = value.get(_KIND, next(iter(choices)) if len(choices) == 1 else None)
    if kind is None:
        raise RecipeError(f"{path} must say its 'kind', one of {sorted(choices)}; got the keys {[*map(str, value)]}")
    return _decode_dataclass(
        _choose(choices, kind, path), {key: item for key, item in value.items() if key != _KIND}, path
    )


def _choose(choices: Mapping[str, Any], kind: Any, path: str) -> Any:
    if not isinstance(kind, str) or kind not in choices:
        raise RecipeError(
            f"{path} must be one of {sorted(choices)}, got {kind!r}{nearest_spelling(str(kind), choices)}"
        )
    return choices[kind]


def _decode_dataclass(cls: Any, values: Mapping[str, Any], path: str) -> Any:
    names, required = _fields(cls)
    values = _without_removed(values, path)
    for key in values:
        if key not in names:
            raise RecipeError(f"{path} has no key {key!r}{nearest_spelling(str(key), names)} (it has {names})")
    missing = [name for name in required if name not in values]
    if missing:
        raise RecipeError(f"{path} must have {', '.join(missing)} in {cls.__name__}, got the keys {[*values]}")
    hints = type_hints(cls)
    return cls(**{key: decode(hints[key], value, f"{path}.{key}") for key, value in values.items()})


def _without_removed(values: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    removed = {key: _REMOVED[f"{path}.{key}"] for key in values if f"{path}.{key}" in _REMOVED}
    for key, reason in removed.items():
        # Recipes that were written in full have them as null.
        if values[key] is not None:
            _LOG.warning("%s.%s is ignored: %s", path, key, reason)
    return {key: value for key, value in values.items() if key not in removed}


def _fields(cls: Any) -> tuple[list[str], list[str]]:
    """Return the names of all fields, and of those without a default."""
    entries = dataclasses.fields(cls)
    no_default = (dataclasses.MISSING, dataclasses.MISSING)
    return [entry.name for entry in entries], [
        entry.name for entry in entries if (entry.default, entry.default_factory) == no_default
    ]


def _decode_tuple(item_type: Any, value: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise RecipeError(f"{path} must be a list, got {value!r}")
    return tuple(decode(item_type, item, f"{path}[{index}]") for index, item in enumerate(value))


def _decode_enum(cls: type[enum.Enum], value: Any, path: str) -> enum.Enum:
    if isinstance(value, cls):
        return value
    spellings = [member.value for member in cls]
    if value not in spellings:
        raise RecipeError(f"{path} must be one of {spellings}, got {value!r}{nearest_spelling(str(value), spellings)}")
    return cls(value)


def _decode_scalar(cls: type, value: Any, path: str) -> Any:
    # JSON and YAML write 99.0 as 99; bool is a subclass of int and must not pass as a number.
    if cls is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, cls) or (isinstance(value, bool) and cls is not bool):
        raise RecipeError(f"{path} must be {cls.__name__}, got {value!r}")
    return value


def resolve_recipe(recipe: Recipe | str | Path | Mapping[str, Any]) -> tuple[Recipe, tuple[Note, ...]]:
    """Return the recipe for a preset name, a file or plain data, and notes about it.

    Args:
        recipe: A `Recipe`, the name of a preset, the path of a recipe file, or plain data.

    Returns:
        The recipe, and notes about what AMD Quark's preset of that name does and quantry does not yet do.

    Raises:
        RecipeError: There is no such preset or file, or it is not a recipe.
    """
    if isinstance(recipe, Recipe):
        return recipe, ()
    if isinstance(recipe, Mapping):
        return from_plain(recipe), ()
    if isinstance(recipe, Path) or (isinstance(recipe, str) and Path(recipe).suffix in (".yaml", ".yml", ".json")):
        return load_recipe(recipe), ()
    if not isinstance(recipe, str):
        raise RecipeError(f"recipe must be a Recipe, a preset name, a file or a mapping, got {type(recipe).__name__}")
    preset = find_preset(recipe)
    message = "preset {preset}: not yet supported: {feature}"
    notes = tuple(
        Note.of(message, NoteKind.IMPORTANT, preset=preset.recipe.name, feature=feature) for feature in preset.pending
    )
    for note in notes:
        _LOG.warning("%s", note)
    return preset.recipe, notes
