"""Targets from a user's file: YAML with rules by their names, or Python with any rule."""

import runpy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe.codec import decode
from quantry.targets.rules import AnyRule
from quantry.targets.target import Target

SUFFIXES = (".yaml", ".yml", ".py")
_FIELDS = ("name", "summary", "recommended", "rules", "backend", "float_elsewhere", "notes")


def load_target(path: Path) -> Target:
    """Read a target from a file.

    Args:
        path: A YAML file with the fields of `Target`, whose rules are written as ``{kind: Types, activation: [int8]}``,
            or a Python file that assigns a `Target` to ``TARGET``.

    Raises:
        RecipeError: The file is missing or does not define a target; the message says where.
    """
    if not path.is_file():
        raise RecipeError(f"--target must be the name of a target or a file, got {path}, which does not exist")
    target = _from_python(path) if path.suffix == ".py" else _from_yaml(path)
    return replace(target, file=str(path))


def _from_python(path: Path) -> Target:
    try:
        target = runpy.run_path(str(path)).get("TARGET")
    except Exception as error:  # a user's file may raise anything
        raise RecipeError(f"a target file must run, got {type(error).__name__}: {error}; in {path}") from error
    if not isinstance(target, Target):
        raise RecipeError(f"a target file must assign a Target to TARGET, got {type(target).__name__}; in {path}")
    return target


def _from_yaml(path: Path) -> Target:
    import yaml

    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"a target file must be valid YAML, got {error}; in {path}") from error
    if not isinstance(plain, Mapping):
        raise RecipeError(f"a target file must be a mapping with {', '.join(_FIELDS)}, got {plain!r}; in {path}")
    try:
        return _decoded(plain)
    except RecipeError as error:
        raise RecipeError(f"{error}; in {path}") from error


def _decoded(plain: Mapping[Any, Any]) -> Target:
    for key in plain:
        if key not in _FIELDS:
            raise RecipeError(f"a target has no key {key!r}{nearest_spelling(str(key), _FIELDS)} (it has {_FIELDS})")
    for key in ("name", "summary", "recommended"):
        if key not in plain:
            raise RecipeError(f"a target must have {key}, got the keys {[*plain]}")
    for key in ("recommended", "rules", "notes"):
        if not isinstance(plain.get(key, []), list):
            raise RecipeError(f"{key} of a target must be a list, got {plain[key]!r}")
    fields = {key: value for key, value in plain.items() if key != "rules"}
    rules = decode(tuple[AnyRule, ...], plain.get("rules", ()), "rules")
    return Target(**fields, rules=rules)
