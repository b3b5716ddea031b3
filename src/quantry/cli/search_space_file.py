"""Search spaces in YAML files: dotted paths of a recipe to lists of values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantry.autosearch import Choice, IntRange, Parameter, Space, SpaceUnion, Uniform, named_space
from quantry.errors import RecipeError, nearest_spelling, require_known
from quantry.recipe import Recipe, from_plain, to_plain
from quantry.recipe.plain_text import yaml_value

_FILES = (".yaml", ".yml", ".json")
_FIRST = "first"
_RANGE = ("low", "high", "log", "step", "only_if")


def space_from_plain(plain: object, base: Recipe) -> Space | SpaceUnion:
    """Return the space that plain data describe.

    ::

        scale.activation: [MinMax, {kind: Percentile, percentile: 99.99}]
        equalize.cross_layer: [null, CrossLayer]
        tune.steps.0.learning_rate: {low: 1e-6, high: 1e-3, log: true}
        equalize.cross_layer.steps: {values: [1, 2], only_if: {equalize.cross_layer: CrossLayer}}
        first:
          - {scale.activation: MinMax, equalize.cross_layer: null, tune.steps.0.learning_rate: 1e-4}

    Args:
        plain: A mapping, a list of mappings that are tried in order, the name of a space, or a file that holds one of
            these, directly or as ``space`` of a search configuration.
        base: The base recipe of the space.

    Raises:
        RecipeError: A path does not exist, or a value is invalid.
    """
    if isinstance(plain, str):
        file = Path(plain)
        return space_from_plain(_read(file), base) if file.suffix.lower() in _FILES else named_space(plain, base)
    if isinstance(plain, list):
        return SpaceUnion(tuple(_space(entry, base, f"space {number}") for number, entry in enumerate(plain)))
    return _space(plain, base, "space")


def _read(path: Path) -> object:
    """Return the space in a file."""
    try:
        plain = yaml_value(path.read_text(encoding="utf-8"), "a space")
    except (OSError, UnicodeDecodeError, RecipeError) as error:
        raise RecipeError(f"a space must be in a readable YAML file, got {error}; in {path}") from error
    content = plain.get("space") if isinstance(plain, Mapping) and "space" in plain else plain
    if not isinstance(content, Mapping | list):
        raise RecipeError(f"a file must hold a space, a mapping of recipe paths to lists of values; in {path}")
    return content


def _space(plain: object, base: Recipe, name: str) -> Space:
    if not isinstance(plain, Mapping) or not plain:
        raise RecipeError(f"a space must be a mapping of recipe paths to lists of values, got {plain!r}")
    paths = [str(path) for path in plain if path != _FIRST]
    names = (*to_plain(base), _FIRST)
    for path in paths:
        if path.split(".")[0] not in names:
            raise RecipeError(
                f"a space must name paths of a recipe, or {_FIRST!r}, got {path!r}{nearest_spelling(path, names)}"
            )
    if not paths:
        raise RecipeError(f"a space must name recipe paths besides {_FIRST!r}, got none")
    reader = _ValueReader(base, tuple(paths))
    fields = {path: _parameter(path, plain[path], reader) for path in paths}
    first = plain.get(_FIRST)
    return Space.of(base, fields, name, [] if first is None else _first(first, fields, reader))


def _first(entries: object, fields: Mapping[str, Parameter], reader: "_ValueReader") -> list[dict[str, Any]]:
    """Return the entries to try before all others."""
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise RecipeError(f"{_FIRST} of a space must be a list of mappings from its paths to values, got {entries!r}")
    return [{str(path): _one(str(path), value, fields, reader) for path, value in entry.items()} for entry in entries]


def _one(path: str, plain: object, fields: Mapping[str, Parameter], reader: "_ValueReader") -> Any:
    """Return one value of a parameter; unknown paths are left to Space.of, which raises."""
    if isinstance(fields.get(path), Uniform | IntRange):
        return _number(plain, path)
    return reader.value(path, plain) if path in fields else plain


def _parameter(path: str, values: object, reader: "_ValueReader") -> Parameter:
    if isinstance(values, list):
        return Choice(tuple(reader.value(path, value) for value in values))
    if not isinstance(values, Mapping):
        raise RecipeError(f"{path} of a space must be a list of values or a range, got {values!r}; write [{values!r}]")
    keys = ("values", "only_if") if "values" in values else _RANGE
    require_known(f"{path} of a space", values, keys, f"hold {', '.join(keys)}")
    if not isinstance(values.get("only_if") or {}, Mapping):
        raise RecipeError(f"only_if of {path} of a space must map paths to values, got {values['only_if']!r}")
    if not isinstance(values.get("values", []), list):
        raise RecipeError(f"values of {path} of a space must be a list, got {values['values']!r}")
    conditions = {
        str(owner): [reader.value(str(owner), value) for value in (allowed if isinstance(allowed, list) else [allowed])]
        for owner, allowed in (values.get("only_if") or {}).items()
    }
    if "values" in values:
        return Choice(tuple(reader.value(path, value) for value in values["values"]), conditions)
    if "low" not in values or "high" not in values:
        raise RecipeError(f"{path} of a space must have values, or low and high, got {dict(values)!r}")
    low, high, log = _number(values["low"], path), _number(values["high"], path), bool(values.get("log", False))
    step = None if values.get("step") is None else _number(values["step"], path)
    if isinstance(low, int) and isinstance(high, int):
        return IntRange(low, high, log, int(step or 1), conditions)
    return Uniform(float(low), float(high), log, step, conditions)


def _number(value: object, path: str) -> int | float:
    # YAML 1.1 reads 1e-6 as text, because it requires a decimal point.
    try:
        if isinstance(value, bool):
            raise TypeError
        return value if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{path} of a space must have numbers, got {value!r}") from error


@dataclass(frozen=True)
class _ValueReader:
    """Reads values of a space as recipes write them.

    Attributes:
        base: The base recipe.
        paths: The paths of the space.
    """

    base: Recipe
    paths: tuple[str, ...]

    def value(self, path: str, plain: object) -> Any:
        """Return the value that plain data stand for at a path."""
        try:
            return _value(path, plain, self.base)
        except RecipeError:
            if any(path.startswith(f"{parent}.") for parent in self.paths):
                return plain  # the path is inside a value that another parameter sets
            raise


def _value(path: str, plain: object, base: Recipe) -> Any:
    """Return the value that plain data stand for at a path of a recipe.

    The plain data are put into the plain base recipe, and the codec of recipes reads the whole.
    """
    tree = to_plain(base)
    node: Any = tree
    *parents, last = path.split(".")
    for key in parents:
        if isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
            continue
        if not isinstance(node, dict) or not isinstance(node.get(key), dict | list):
            return plain  # inside a value that another parameter sets, or unknown, for which Space.of raises
        node = node[key]
    if isinstance(node, list):
        if not last.isdigit() or int(last) >= len(node):
            return plain  # unknown, for which Space.of raises
        node[int(last)] = plain
    else:
        node[last] = plain
    value: Any = from_plain(tree)
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, tuple) else getattr(value, key)
    return value
