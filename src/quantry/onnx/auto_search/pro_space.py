"""Search spaces of AutoSearchPro: base keys are lists, groups of parameters are dicts with ``only_if``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantry.autosearch import Assignment, Choice, IntRange, Parameter, Uniform
from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    SmoothQuantConfig,
)
from quantry.onnx.auto_search.search_space import range_parameter
from quantry.onnx.options import ROWS
from quantry.onnx.qconfig import QConfig
from quantry.onnx.specs import SPECS, QLayerConfig, QTensorConfig
from quantry.recipe import Recipe

GROUPS = {
    "activation_params": "activation",
    "weight_params": "weight",
    "cle_params": "cle_algo",
    "adaround_params": "algorithms",
    "adaquant_params": "algorithms",
}
"""Groups of parameters, to the base key that they belong to."""

_BASE = ("activation", "weight", "cle_algo", "algorithms")
_ALGORITHMS: Mapping[str, type[AlgoConfig]] = {
    "adaround": AdaRoundConfig,
    "adaquant": AdaQuantConfig,
    "gptq": GPTQConfig,
    "biascorrection": BiasCorrectionConfig,
    "smoothquant": SmoothQuantConfig,
}
_NONE = (None, False, "", "none", "None")
FINETUNING = ("algorithms", "adaround_params", "adaquant_params")
"""What the second stage of a search in two stages is about."""


def pro_parameters(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a space, groups under dotted names such as ``adaround_params.learning_rate``.

    Raises:
        RecipeError: A key is unknown, or a leaf is neither a list nor a range.
    """
    known = (*_BASE, *GROUPS, *ROWS)
    base: dict[str, Parameter] = {}
    groups: dict[str, Parameter] = {}
    for name, given in space.items():
        if name not in known:
            raise RecipeError(f"search_space must hold known keys, got {name!r}{nearest_spelling(str(name), known)}")
        if name in GROUPS:
            groups |= _group(name, given, space)
        else:
            base[name] = _leaf(given, name, {})
    return base | groups


def _group(name: str, given: Any, space: Mapping[str, Any]) -> dict[str, Parameter]:
    if not isinstance(given, Mapping):
        raise RecipeError(f"search_space[{name!r}] must be a dict of lists, got {type(given).__name__}")
    conditions = _conditions(name, given.get("only_if"), space)
    return {
        f"{name}.{key}": _leaf(value, f"{name}.{key}", conditions) for key, value in given.items() if key != "only_if"
    }


def _conditions(name: str, only_if: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group asks of base keys: by name that they are on, or in a dict what they are."""
    if only_if is None:
        only_if = {"algorithms": name.removesuffix("_params")} if GROUPS[name] == "algorithms" else GROUPS[name]
    if isinstance(only_if, str):
        values = space.get(only_if)
        if not isinstance(values, list | tuple):
            if only_if in _BASE:
                return {}
            raise RecipeError(f"only_if of {name!r} must name a key of the space, got {only_if!r}")
        on = [value for value in values if value not in _NONE]
        return {only_if: on} if len(on) < len(values) else {}
    if not isinstance(only_if, Mapping):
        raise RecipeError(f"only_if of {name!r} must be a key or a dict of keys to values, got {only_if!r}")
    for key, wanted in only_if.items():
        if key not in space:
            raise RecipeError(f"only_if of {name!r} must name keys of the space, got {key!r}; {wanted!r}")
    return dict(only_if)


def _leaf(given: Any, name: str, only_if: Mapping[str, Any]) -> Parameter:
    if isinstance(given, list | tuple):
        return Choice(tuple(given), only_if)
    if isinstance(given, Mapping) and "low" in given and "high" in given:
        found = range_parameter(given, name)
        if isinstance(found, IntRange):
            return IntRange(found.low, found.high, found.log, found.step, only_if)
        return Uniform(found.low, found.high, found.log, found.step, only_if)
    raise RecipeError(f"search_space[{name!r}] must be a list or a range with low and high, got {given!r}")


@dataclass(frozen=True)
class ProBuild:
    """Makes recipes of assignments, by way of a QConfig.

    Attributes:
        fixed: What all configurations have besides.
    """

    fixed: Mapping[str, Any]

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe.

        Raises:
            RecipeError: The values do not go together or cannot be had.
        """
        return self.config({**self.fixed, **assignment}).to_job().recipe

    def config(self, values: Mapping[str, Any]) -> QConfig:
        """Return the values as a QConfig."""
        layer = QLayerConfig(
            activation=_spec(values.get("activation", "Int8"), values, "activation"),
            weight=_spec(values.get("weight", "Int8"), values, "weight"),
        )
        algorithms: list[AlgoConfig] = []
        if values.get("cle_algo") not in _NONE:
            algorithms.append(CLEConfig(**_inside(values, "cle_params")))
        chosen = values.get("algorithms")
        algorithms += [
            _algorithm(name)(**_inside(values, f"{str(name).lower()}_params"))
            for name in (chosen if isinstance(chosen, list | tuple) else [chosen])
            if name not in _NONE
        ]
        options = {name: value for name, value in values.items() if name in ROWS}
        return QConfig(layer, algo_config=algorithms, **options)


def _spec(name: Any, values: Mapping[str, Any], which: str) -> QTensorConfig:
    settings = _inside(values, f"{which}_params")
    if isinstance(name, QTensorConfig):
        return type(name)(**{**vars(name), **settings})
    known = [entry.removesuffix("Spec") for entry in SPECS]
    found = str(name).removesuffix("Spec")
    if found not in known:
        raise RecipeError(f"{which} must be one of {', '.join(known)}, got {name!r}{nearest_spelling(found, known)}")
    return SPECS[f"{found}Spec"](**settings)


def _algorithm(name: Any) -> type[AlgoConfig]:
    found = _ALGORITHMS.get(str(name).lower())
    if found is None:
        raise RecipeError(
            f"algorithms must be among {', '.join(_ALGORITHMS)} or None, got {name!r}"
            f"{nearest_spelling(str(name).lower(), _ALGORITHMS)}"
        )
    return found


def _inside(values: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{group}.")}
