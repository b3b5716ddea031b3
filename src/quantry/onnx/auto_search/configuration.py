"""Configurations of a search under AMD Quark's names: as nested dictionaries, flat assignments, lists and recipes."""

import copy
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantry.autosearch import Assignment, Choice, IntRange, Space
from quantry.errors import RecipeError, require_known
from quantry.memo import fingerprint
from quantry.onnx.config import Config, QuantizationConfig
from quantry.onnx.options import FIELDS
from quantry.onnx.presets import get_default_config
from quantry.onnx.translate import Job, translate
from quantry.recipe import Recipe

Configuration = dict[str, Any]
"""Fields of QuantizationConfig to values; options are in a dictionary under ``extra_options``."""

JOINT = "NumIterLR"
INDEX = "config_index"
_FINETUNE = "FastFinetune"
_SWITCH = "include_fast_ft"

# Optuna stores the labels of all values of a choice with every trial; beyond this, a list is an integer parameter.
_MAX_LABELS = 1000


def starting_config(config: object) -> QuantizationConfig:
    """Return the configuration that a search starts from.

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
        for key in path:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def flattened(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries as one with dotted names; options whose value is a dictionary are not split."""
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
    """Return a copy of the starting configuration with the values of a configuration of the search.

    Args:
        base: The starting configuration; it is only read.
        configuration: What differs. The joint parameter NumIterLR stands for its two values.

    Raises:
        RecipeError: A key is unknown; the message has the nearest spelling.
    """
    config = copy.copy(base)
    keys = (*FIELDS, "extra_options")
    require_known("a configuration", configuration, keys, "hold fields of QuantizationConfig")
    for name, value in configuration.items():
        if name != "extra_options":
            setattr(config, name, value)
    options = dict(base.extra_options or {})
    for name, value in (configuration.get("extra_options") or {}).items():
        old = options.get(name)
        joined = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        options[name] = _without_joint(joined) if name == _FINETUNE and isinstance(joined, Mapping) else joined
    config.extra_options = options
    return config


def _without_joint(finetune: Mapping[str, Any]) -> dict[str, Any]:
    """Return finetuning options with the joint parameter replaced by its two values."""
    joint = finetune.get(JOINT)
    options = {name: value for name, value in finetune.items() if name != JOINT}
    if joint is None:
        return options
    if not isinstance(joint, list | tuple) or len(joint) != 2:
        raise RecipeError(f"{JOINT} must be a pair of iterations and learning rate, got {joint!r}")
    return options | {"NumIterations": joint[0], "LearningRate": joint[1]}


class RecipeMaker:
    """Builds recipes from configurations and one starting configuration.

    Finetuning options do not affect the rest of a recipe. Both parts are translated and cached separately: a large
    space combines a thousand of the one with dozens of the other.

    Args:
        base: The starting configuration; it is copied.
    """

    def __init__(self, base: QuantizationConfig) -> None:
        self.base = copy.deepcopy(base)
        options = {name: value for name, value in (self.base.extra_options or {}).items() if name != _FINETUNE}
        self._untuned = copy.copy(self.base)
        self._untuned.extra_options = options
        self._recipes: dict[str, Recipe | RecipeError] = {}
        self._steps: dict[str, Any] = {}

    def __call__(self, configuration: Mapping[str, Any]) -> Recipe:
        """Return the recipe.

        Raises:
            RecipeError: The values are an invalid or unsupported combination.
        """
        options = configuration.get("extra_options") or {}
        finetune = options.get(_FINETUNE, {})
        tuned = configuration.get(_SWITCH, self.base.include_fast_ft)
        if not isinstance(finetune, Mapping) or not tuned:
            return self._without_finetuning(configuration)
        untuned = {name: value for name, value in options.items() if name != _FINETUNE}
        recipe = self._without_finetuning({**configuration, "extra_options": untuned})
        start = (self.base.extra_options or {}).get(_FINETUNE, {})
        steps = (*recipe.tune.steps[:-1], self._step({**start, **finetune}))
        return replace(recipe, tune=replace(recipe.tune, steps=steps))

    def job(self, configuration: Mapping[str, Any]) -> Job:
        """Return the complete job of a configuration."""
        return translate(applied(self.base, configuration))

    def _without_finetuning(self, configuration: Mapping[str, Any]) -> Recipe:
        key = repr(configuration)
        if key not in self._recipes:
            try:
                self._recipes[key] = translate(applied(self._untuned, configuration)).recipe
            except RecipeError as error:
                self._recipes[key] = error
        cached = self._recipes[key]
        if isinstance(cached, RecipeError):
            # A new exception: raising the cached one again would let its traceback grow.
            raise RecipeError(str(cached))
        return cached

    def _step(self, finetune: Mapping[str, Any]) -> Any:
        key = repr(finetune)
        if key not in self._steps:
            settings = {_FINETUNE: _without_joint(finetune)}
            alone = QuantizationConfig(include_fast_ft=True, extra_options=settings)
            self._steps[key] = translate(alone).recipe.tune.steps[-1]
        return self._steps[key]


@dataclass(frozen=True)
class NestedBuild:
    """Builds recipes from flat assignments.

    Attributes:
        maker: Holds the starting configuration.
        fixed: Values that all configurations share, as nested dictionaries.
    """

    maker: RecipeMaker
    fixed: Mapping[str, Any] | None = None

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe of an assignment."""
        return self.maker(nested({**flattened(self.fixed or {}), **assignment}))


@dataclass(frozen=True)
class ListBuild:
    """Builds recipes from indices into a list of configurations.

    Attributes:
        maker: Holds the starting configuration.
        configurations: The list.
    """

    maker: RecipeMaker
    configurations: tuple[Mapping[str, Any], ...]

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe of an index."""
        return self.maker(self.configurations[index_of(assignment)])


@dataclass(frozen=True)
class Entry:
    """An index into a list of configurations, which is printed together with the configuration.

    Attributes:
        index: The index.
        text: The configuration, for logs and tables.
    """

    index: int
    text: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.index} ({self.text})"


def index_of(assignment: Assignment) -> int:
    """Return the index into the list of configurations, which are tried in this order."""
    entry = assignment[INDEX]
    return entry.index if isinstance(entry, Entry) else int(entry)


def list_space(maker: RecipeMaker, configurations: Sequence[Mapping[str, Any]], name: str = "all_configs") -> Space:
    """Return the space of a list of configurations, tried in their order.

    Raises:
        RecipeError: The list is empty or holds something else.
    """
    if not configurations:
        raise RecipeError("all_configs must hold at least one configuration, got none")
    for configuration in configurations:
        if not isinstance(configuration, Mapping):
            raise RecipeError(
                f"all_configs must hold dicts such as build_all_configs returns, got a {type(configuration).__name__}"
            )
    # The name is part of a search's identity; indices alone would not tell two lists apart.
    digest = fingerprint((repr(maker.base), repr(list(configurations)))).short
    build = ListBuild(maker, tuple(configurations))
    return Space({INDEX: _indices(configurations)}, build, index_of, name=f"{name} {digest}")


def _indices(configurations: Sequence[Mapping[str, Any]]) -> Choice | IntRange:
    if len(configurations) > _MAX_LABELS:
        return IntRange(0, len(configurations) - 1)
    return Choice(tuple(Entry(index, _text(entry)) for index, entry in enumerate(configurations)))


def _text(configuration: Mapping[str, Any]) -> str:
    """Return a configuration on one line."""
    return ", ".join(
        f"{name.removeprefix('extra_options.')}="
        f"{f'{type(value).__name__}.{value.name}' if isinstance(value, enum.Enum) else repr(value)}"
        for name, value in flattened(configuration).items()
    )


def has_both_stages(configurations: Sequence[Mapping[str, Any]], base: QuantizationConfig) -> bool:
    """Return whether there is something to search in calibration and something in finetuning.

    Finetuning must be on in at least one configuration, or in the starting configuration.
    """
    tuned = [entry for entry in configurations if _finetuning(entry) and entry.get(_SWITCH, base.include_fast_ft)]
    calibrated = [entry for entry in configurations if _calibration(entry)]
    return bool(tuned) and bool(calibrated)


def calibration_stage(configurations: Sequence[Mapping[str, Any]]) -> list[Configuration]:
    """Return the configurations of the first of two stages: finetuning off, without duplicates."""
    return _distinct({**_calibration(entry), _SWITCH: False} for entry in configurations)


def finetuning_stage(calibrated: Mapping[str, Any], configurations: Sequence[Mapping[str, Any]]) -> list[Configuration]:
    """Return the configurations of the second stage: the best of the first with all finetuning options."""
    options = calibrated.get("extra_options") or {}
    return _distinct(
        {**calibrated, _SWITCH: True, "extra_options": {**options, _FINETUNE: settings}}
        for settings in map(_finetuning, configurations)
        if settings
    )


def _finetuning(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = (configuration.get("extra_options") or {}).get(_FINETUNE) or {}
    return settings if isinstance(settings, Mapping) else {}


def _calibration(configuration: Mapping[str, Any]) -> Configuration:
    """Return a configuration without its finetuning options."""
    calibrated = {name: value for name, value in configuration.items() if name not in (_SWITCH, "extra_options")}
    options = {name: value for name, value in (configuration.get("extra_options") or {}).items() if name != _FINETUNE}
    return calibrated | ({"extra_options": options} if options else {})


def _distinct(configurations: Iterable[Configuration]) -> list[Configuration]:
    # By their text: values need not be hashable.
    return list({repr(configuration): configuration for configuration in configurations}.values())
