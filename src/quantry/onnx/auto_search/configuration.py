"""Configurations of a search as nested dictionaries, as flat ones, and as recipes."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.config import Config, QuantizationConfig
from quantry.onnx.options import FIELDS
from quantry.onnx.presets import get_default_config
from quantry.onnx.translate import Job, translate
from quantry.recipe import Recipe

Configuration = dict[str, Any]
"""Names of fields and, under ``extra_options``, of options, to their values; further dictionaries inside."""

JOINT = "NumIterLR"
_FINETUNE = "FastFinetune"


def starting_config(config: object) -> QuantizationConfig:
    """Return the configuration that a search starts from, in any of its forms.

    Args:
        config: A QuantizationConfig, a Config of one, or the name of a default configuration.

    Raises:
        RecipeError: It is something else.
    """
    inner = config.global_quant_config if isinstance(config, Config) else config
    if isinstance(inner, str):
        inner = get_default_config(inner)
    if not isinstance(inner, QuantizationConfig):
        raise RecipeError(
            "AutoSearch takes a QuantizationConfig, a Config of one or the name of a default configuration, "
            f"got {type(inner).__name__}; for a QConfig use AutoSearchPro or quantry.search"
        )
    return inner


def nested(flat: Mapping[str, Any]) -> Configuration:
    """Return a flat assignment such as ``{"extra_options.Percentile": 99.9}`` as nested dictionaries."""
    tree: Configuration = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def flattened(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries as one with dotted names; options that are dictionaries themselves stay whole."""
    flat: dict[str, Any] = {}
    for name, value in configuration.items():
        if name == "extra_options" and isinstance(value, Mapping):
            for option, setting in value.items():
                if option == _FINETUNE and isinstance(setting, Mapping):
                    flat |= {f"{name}.{option}.{key}": inner for key, inner in setting.items()}
                else:
                    flat[f"{name}.{option}"] = setting
        else:
            flat[name] = value
    return flat


def applied(base: QuantizationConfig, configuration: Mapping[str, Any]) -> QuantizationConfig:
    """Return a copy of the starting configuration with the values of a search's configuration.

    Args:
        base: The starting configuration; it is only read.
        configuration: What differs. The joint parameter NumIterLR stands for its two values.

    Raises:
        RecipeError: A key is unknown; the message has the nearest spelling.
    """
    config = copy.copy(base)
    for name, value in configuration.items():
        if name not in FIELDS and name != "extra_options":
            raise RecipeError(
                f"a configuration must hold fields of QuantizationConfig, got {name!r}"
                f"{nearest_spelling(str(name), [*FIELDS, 'extra_options'])}"
            )
        if name != "extra_options":
            setattr(config, name, value)
    options = dict(base.extra_options or {})
    for name, value in (configuration.get("extra_options") or {}).items():
        old = options.get(name)
        joined = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        options[name] = _separated(joined) if name == _FINETUNE and isinstance(joined, Mapping) else joined
    config.extra_options = options
    return config


def _separated(finetune: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of finetuning with the joint parameter as its two values."""
    joint = finetune.get(JOINT)
    rest = {name: value for name, value in finetune.items() if name != JOINT}
    if joint is None:
        return rest
    if not isinstance(joint, list | tuple) or len(joint) != 2:
        raise RecipeError(f"{JOINT} must be a pair of iterations and learning rate, got {joint!r}")
    return rest | {"NumIterations": joint[0], "LearningRate": joint[1]}


class RecipeMaker:
    """Makes recipes of configurations over one starting configuration.

    The settings of finetuning have no bearing on the rest of a recipe, so recipes without them are kept and finished
    with each: a large space has a thousand of the ones and dozens of the others.

    Args:
        base: The starting configuration; it is copied.
    """

    def __init__(self, base: QuantizationConfig) -> None:
        self.base = copy.deepcopy(base)
        options = {name: value for name, value in (self.base.extra_options or {}).items() if name != _FINETUNE}
        self._bare = copy.copy(self.base)
        self._bare.extra_options = options
        self._recipes: dict[str, Recipe | RecipeError] = {}
        self._steps: dict[str, Any] = {}

    def __call__(self, configuration: Mapping[str, Any]) -> Recipe:
        """Return the recipe.

        Raises:
            RecipeError: The values do not go together or cannot be had.
        """
        options = configuration.get("extra_options") or {}
        given = options.get(_FINETUNE, {})
        tuned = configuration.get("include_fast_ft", self.base.include_fast_ft)
        if not isinstance(given, Mapping) or not tuned:
            return self._without_settings(configuration)
        rest = {name: value for name, value in options.items() if name != _FINETUNE}
        recipe = self._without_settings({**configuration, "extra_options": rest})
        own = (self.base.extra_options or {}).get(_FINETUNE, {})
        steps = (*recipe.tune.steps[:-1], self._step({**own, **given}))
        return replace(recipe, tune=replace(recipe.tune, steps=steps))

    def job(self, configuration: Mapping[str, Any]) -> Job:
        """Return the whole job of a configuration."""
        return translate(applied(self.base, configuration))

    def _without_settings(self, configuration: Mapping[str, Any]) -> Recipe:
        key = repr(configuration)
        if key not in self._recipes:
            try:
                self._recipes[key] = translate(applied(self._bare, configuration)).recipe
            except RecipeError as error:
                self._recipes[key] = error
        found = self._recipes[key]
        if isinstance(found, RecipeError):
            raise RecipeError(str(found))
        return found

    def _step(self, finetune: Mapping[str, Any]) -> Any:
        key = repr(finetune)
        if key not in self._steps:
            settings = {_FINETUNE: _separated(finetune)}
            alone = QuantizationConfig(include_fast_ft=True, extra_options=settings)
            self._steps[key] = translate(alone).recipe.tune.steps[-1]
        return self._steps[key]
