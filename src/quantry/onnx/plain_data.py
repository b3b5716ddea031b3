"""Configurations as plain data: dicts, lists, numbers and strings, as JSON and YAML files hold them.

Layers, tensors and algorithms have the form of AMD Quark 0.13, such as ``{"name": "cle", "cle_steps": 2}``, so that
either program reads the other's files. Where that form has no word for something, an object is a dict whose ``$`` names
its class, and a member of an enumeration is ``{"$": "QuantType.QInt8"}``.
"""

import enum
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from quantry.errors import RecipeError, nearest_spelling, require_choice
from quantry.onnx.algorithms import ALGORITHMS, AlgoConfig
from quantry.onnx.enums import ENUMERATIONS
from quantry.onnx.specs import SPECS, QLayerConfig, QTensorConfig
from quantry.recipe import DataType

_TAG = "$"
_CLASSES: dict[str, Any] = {kind.__name__: kind for kind in (*SPECS.values(), *ALGORITHMS, QTensorConfig, QLayerConfig)}
_ENUMS: dict[str, type[enum.Enum]] = {**{kind.__name__: kind for kind in ENUMERATIONS}, "DataType": DataType}


def to_plain(value: Any, path: str) -> Any:
    """Return a value as plain data.

    Args:
        value: A configuration or a part of one.
        path: The field, for messages.

    Raises:
        RecipeError: It holds something that is not data, such as a function; the message has its path.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum) and type(value).__name__ in _ENUMS:
        return {_TAG: f"{type(value).__name__}.{value.name}"}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_plain(entry, f"{path}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    if isinstance(value, QTensorConfig | QLayerConfig):
        return value.to_dict()
    if isinstance(value, AlgoConfig):
        items = ((field, getattr(value, field.name)) for field in fields(value))
        values = {
            field.name: to_plain(entry, f"{path}.{field.name}") for field, entry in items if entry != field.default
        }
        return {"name": value.name, **values}
    raise RecipeError(
        f"{path} must hold plain data for to_dict, got {value!r} of type {type(value).__name__}; set it after from_dict"
    )


def layer_of(value: Any, path: str) -> Any:
    """Return a layer's configuration for plain data; None stays None.

    Args:
        value: Plain data.
        path: The field, for messages.

    Raises:
        RecipeError: A field or a member is unknown.
    """
    if not isinstance(value, Mapping) or _TAG in value:
        return from_plain(value, path)
    return QLayerConfig.from_dict(value)


def algorithm_of(value: Any, path: str) -> Any:
    """Return an algorithm for plain data.

    Args:
        value: Plain data with the algorithm's name.
        path: The field, for messages.

    Raises:
        RecipeError: There is no algorithm of that name, or it has no such argument.
    """
    if not isinstance(value, Mapping) or _TAG in value:
        return from_plain(value, path)
    algorithms = {kind.name: kind for kind in ALGORITHMS}
    name = str(value.get("name"))
    require_choice(f"the name of an algorithm in {path}", name, algorithms)
    settings = {key: from_plain(entry, f"{path}.{key}") for key, entry in value.items() if key != "name"}
    if "target_layer_config" in settings:
        settings["target_layer_config"] = layer_of(settings["target_layer_config"], f"{path}.target_layer_config")
    return algorithms[name](**settings)


def from_plain(value: Any, path: str) -> Any:
    """Return the value that `to_plain` was given.

    Args:
        value: Plain data.
        path: The field, for messages.

    Raises:
        RecipeError: It names an unknown class or member.
    """
    if isinstance(value, list | tuple):
        return [from_plain(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    values = {key: from_plain(entry, f"{path}[{key!r}]") for key, entry in value.items() if key != _TAG}
    if _TAG not in value:
        return values
    name, _, member = str(value[_TAG]).partition(".")
    if not member and name in _CLASSES:
        return _CLASSES[name](**values)
    kind = _ENUMS.get(name)
    if kind is None or member not in kind.__members__:
        spellings = [
            *_CLASSES,
            *(f"{kind}.{entry}" for kind, members in _ENUMS.items() for entry in members.__members__),
        ]
        raise RecipeError(
            f"{path} must name a known class or enumeration member, got {value[_TAG]!r}"
            f"{nearest_spelling(str(value[_TAG]), spellings)}"
        )
    return kind[member]
