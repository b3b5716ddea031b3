"""Search spaces under AMD Quark's names: nested dictionaries of lists, their conditions, and finetuning ranges."""

import enum
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from quantry.autosearch import Assignment, Choice, IntRange, Parameter, Space, Uniform, with_checkpoints
from quantry.errors import RecipeError, require_known
from quantry.memo import fingerprint
from quantry.onnx.auto_search.configuration import JOINT, Configuration, NestedBuild, RecipeMaker, flattened, nested
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.options import FIELDS, NESTED, ROWS
from quantry.recipe import Recipe

_LOG = logging.getLogger("quantry")
_RANGE_KEYS = ("type", "low", "high", "step", "log")
_TUNED = ("NumIterations", "LearningRate")
_EXTRA = "extra_options."
_FINETUNE = f"{_EXTRA}FastFinetune."


@dataclass(frozen=True)
class Condition:
    """An option has an effect only if another option has a certain value.

    Attributes:
        owner: Name of the other option.
        holds: Whether a value of the other option is such a value.
        default: Value of the other option if neither the space nor the starting configuration sets it.
        text: The condition in words.
    """

    owner: str
    holds: Callable[[Any], bool]
    default: Any
    text: str


def _method(*names: str) -> Condition:
    # By name, so that members of onnxruntime's enumerations count as well.
    def holds(value: Any) -> bool:
        return isinstance(value, enum.Enum) and f"{type(value).__name__}.{value.name}" in names

    return Condition("calibrate_method", holds, None, f"calibrate_method is {' or '.join(names)}")


def _switch(owner: str, *, default: bool = False) -> Condition:
    return Condition(owner, bool, default, f"{owner} is True")


def _algorithm(name: str) -> Condition:
    return Condition(
        f"{_FINETUNE}OptimAlgorithm",
        lambda value: str(value).casefold() == name,
        "adaround",
        f"FastFinetune's OptimAlgorithm is {name!r}",
    )


_MIN_MAX = _method("CalibrationMethod.MinMax")
_LAYER_WISE = _method("LayerWiseMethod.LayerWisePercentile")
_ENTROPY = _method("CalibrationMethod.Entropy")

_CONDITIONS: Mapping[str, Condition] = {
    f"{_EXTRA}CalibMovingAverage": _MIN_MAX,
    f"{_EXTRA}CalibMovingAverageConstant": _switch(f"{_EXTRA}CalibMovingAverage"),
    f"{_EXTRA}Percentile": _method("CalibrationMethod.Percentile"),
    f"{_EXTRA}PercentileCandidates": _LAYER_WISE,
    f"{_EXTRA}LWPMetric": _LAYER_WISE,
    f"{_EXTRA}NumBins": _ENTROPY,
    f"{_EXTRA}NumQuantizedBins": _ENTROPY,
    f"{_EXTRA}SmoothAlpha": _switch("include_sq"),
    f"{_EXTRA}ReplaceClip6Relu": _switch("include_cle", default=True),
    f"{_FINETUNE}UpdateBias": _algorithm("adaquant"),
    f"{_FINETUNE}RegParam": _algorithm("adaround"),
    f"{_FINETUNE}BetaRange": _algorithm("adaround"),
    f"{_FINETUNE}WarmStart": _algorithm("adaround"),
}
_PREFIXES: Mapping[str, Condition] = {
    f"{_EXTRA}CLE": _switch("include_cle", default=True),
    f"{_EXTRA}AutoMixprecision.": _switch("include_auto_mp"),
    f"{_EXTRA}GPTQParams.": _switch(f"{_EXTRA}UseGPTQ"),
    _FINETUNE: _switch("include_fast_ft"),
}


def conditions_of(name: str) -> tuple[Condition, ...]:
    """Return the conditions under which an option has an effect.

    Args:
        name: Its dotted name, such as "extra_options.Percentile".
    """
    condition = _CONDITIONS.get(name)
    of_group = tuple(condition for prefix, condition in _PREFIXES.items() if name.startswith(prefix))
    # Options of an algorithm also need finetuning itself to be on.
    return (*of_group, *((condition,) if condition is not None else ()))


class SearchSpace:
    """A space of configurations: fields of QuantizationConfig, keys of ``extra_options`` and of ``FastFinetune``.

    Every leaf is a list of candidate values, or a range ``{"type": "int" or "float", "low": ..., "high": ..., "step":
    ..., "log": ...}``. Options that have an effect only with certain values of others (Percentile only with the
    percentile method, FastFinetune only with include_fast_ft, ...) exist only there, so that no configuration is tried
    twice.

    Args:
        space: The nested dictionary.
        base: The starting configuration, for everything the space does not set; None has the defaults.

    Raises:
        RecipeError: A key is unknown, or a leaf is not a list.

    Example:
        >>> from quantry.onnx import CalibrationMethod
        >>> space = SearchSpace({
        ...     "calibrate_method": [CalibrationMethod.MinMax, CalibrationMethod.Percentile],
        ...     "extra_options": {"Percentile": [99.9, 99.99]},
        ... })
        >>> len(space.get_all_configs())
        3
    """

    def __init__(self, space: Mapping[str, Any], base: QuantizationConfig | None = None) -> None:
        self.maker = RecipeMaker(base or QuantizationConfig())
        self.parameters = _conditional(dict(_leaves(space)), self.maker.base)

    def get_all_configs(self) -> list[Configuration]:
        """Return every valid configuration once.

        The first key changes slowest. The log counts what was removed, with the reasons.

        Raises:
            RecipeError: The space has a continuous range.
        """
        valid, invalid, equivalent = self._filtered
        _LOG.info(
            "search space: %d configurations; %d are invalid and %d are duplicates",
            len(valid),
            sum(invalid.values()),
            equivalent,
        )
        for reason, count in sorted(invalid.items(), key=lambda entry: -entry[1]):
            _LOG.info("  %d invalid: %s", count, reason)
        return [nested(assignment) for assignment in valid.values()]

    def place_of(self, recipe: Recipe) -> int | None:
        """Return the index of a recipe's configuration in `get_all_configs`; None if it is not there."""
        return self._places.get(recipe)

    @property
    def is_finite(self) -> bool:
        """Whether the configurations can be enumerated."""
        return self.space().is_finite

    def space(self, name: str = "search_space") -> Space:
        """Return the space that `quantry.autosearch` searches."""
        digest = fingerprint(repr(self.maker.base)).short
        return Space(self.parameters, NestedBuild(self.maker), name=f"{name} from {digest}")

    @cached_property
    def _places(self) -> dict[Recipe, int]:
        return {recipe: index for index, recipe in enumerate(self._filtered[0])}

    @cached_property
    def _filtered(self) -> tuple[dict[Recipe, Assignment], dict[str, int], int]:
        space = self.space()
        recipes: dict[Recipe, Assignment] = {}
        invalid: dict[str, int] = {}
        valid = 0
        for assignment in space.assignments():
            try:
                recipe = space.build(assignment)
            except RecipeError as error:
                invalid[str(error)] = invalid.get(str(error), 0) + 1
                continue
            valid += 1
            recipes.setdefault(recipe, assignment)
        return recipes, invalid, valid - len(recipes)


def generate_all_configs(
    search_space: Mapping[str, Any], base: QuantizationConfig | None = None
) -> list[Configuration]:
    """Return every configuration of a space; see `SearchSpace`."""
    return SearchSpace(search_space, base).get_all_configs()


def _leaves(space: Mapping[str, Any]) -> Iterator[tuple[str, Parameter]]:
    """Yield dotted names and parameters in the order of the dictionaries, fields before options."""
    if not isinstance(space, Mapping):
        raise RecipeError(f"a search space must be a dict of lists, got {type(space).__name__}")
    require_known("a search space", space, (*FIELDS, "extra_options"))
    yield from ((name, parameter_of(value, name)) for name, value in space.items() if name != "extra_options")
    options = space.get("extra_options") or {}
    require_known("extra_options of a search space", options, ROWS)
    levels = {name for name, value in options.items() if isinstance(value, Mapping) and not _is_range(value)}
    for name, value in options.items():
        if name not in levels:
            yield f"extra_options.{name}", parameter_of(value, f"extra_options[{name!r}]")
    for name in (name for name in options if name in levels):
        if name in NESTED:
            require_known(f"extra_options[{name!r}]", options[name], (row.key for row in NESTED[name]))
        for key, value in options[name].items():
            yield f"extra_options.{name}.{key}", parameter_of(value, f"extra_options[{name!r}][{key!r}]")


def _is_range(value: object) -> bool:
    return isinstance(value, Mapping) and "low" in value and "high" in value


def parameter_of(value: object, option: str) -> Parameter:
    """Return the parameter that a list of values or a range stands for.

    Args:
        value: A list, a range such as ``{"type": "float", "low": 1e-6, "high": 1e-4, "log": True}``, or a parameter.
        option: Its name, for messages.

    Raises:
        RecipeError: It is none of these.
    """
    if isinstance(value, Choice | Uniform | IntRange):
        return value
    if isinstance(value, Mapping) and _is_range(value):
        return range_parameter(value, option)
    if isinstance(value, list | tuple):
        if not value:
            raise RecipeError(f"{option} of a search space must list at least one value, got none")
        return Choice(tuple(value))
    raise RecipeError(
        f"{option} of a search space must be a list or a range with low and high, got {value!r}; write [{value!r}]"
    )


def range_parameter(value: Mapping[str, Any], option: str) -> Uniform | IntRange:
    """Return the parameter of a range such as ``{"type": "float", "low": 1e-6, "high": 1e-4, "log": True}``.

    Raises:
        RecipeError: It is not a valid range.
    """
    require_known(f"the range of {option}", value, _RANGE_KEYS)
    is_whole = isinstance(value["low"], int) and isinstance(value["high"], int)
    kind = value.get("type", "int" if is_whole else "float")
    if kind not in ("int", "float"):
        raise RecipeError(f"the range of {option} must have the type 'int' or 'float', got {kind!r}")
    log, step = bool(value.get("log", False)), value.get("step")
    if kind == "int":
        return IntRange(value["low"], value["high"], log, 1 if step is None else step)
    return Uniform(float(value["low"]), float(value["high"]), log, step)


def _conditional(leaves: dict[str, Parameter], base: QuantizationConfig) -> dict[str, Parameter]:
    """Return the parameters with the conditions under which they have an effect, without those that never have."""
    parameters: dict[str, Parameter] = {}
    for name, parameter in leaves.items():
        only_if = dict(parameter.only_if)
        for condition in conditions_of(name):
            required = _requirement(condition, leaves, base)
            if required is False:
                _LOG.info("search space: %s has no effect, because %s in no configuration", name, condition.text)
                break
            if required is not True:
                only_if[condition.owner] = required
        else:
            parameters[name] = replace(parameter, only_if=only_if)
    dropped = [
        name for name, parameter in parameters.items() if any(key not in parameters for key in parameter.only_if)
    ]
    return {name: parameter for name, parameter in parameters.items() if name not in dropped}


def _requirement(condition: Condition, leaves: Mapping[str, Parameter], base: QuantizationConfig) -> list[Any] | bool:
    """Return the values of the other option that satisfy a condition, or whether it always or never holds."""
    owner = leaves.get(condition.owner)
    if isinstance(owner, Choice):
        holding = [value for value in owner.values if condition.holds(value)]
        # The other option may be conditional itself; then even all of its values are a condition.
        if len(holding) == len(owner.values) and not conditions_of(condition.owner):
            return True
        return holding or False
    start = flattened({"extra_options": base.extra_options or {}})
    value = start.get(condition.owner, getattr(base, condition.owner, condition.default))
    return condition.holds(value)


@dataclass(frozen=True)
class CheckpointBuild:
    """Builds recipes from flat assignments, with checkpoints during finetuning.

    Attributes:
        build: Builds the recipe without checkpoints.
        every: Iterations between checkpoints.
    """

    build: NestedBuild
    every: int

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe of an assignment."""
        return with_checkpoints(self.build(assignment), self.every)


def finetune_space(
    search_space: Mapping[str, Any], maker: RecipeMaker, device: str | None = None, checkpoint_every: int | None = None
) -> Space:
    """Return the space of iterations and learning rate.

    Args:
        search_space: ``{"extra_options": {"FastFinetune": {...}}}`` with NumIterations, LearningRate or both; the
            smallest and largest value of a list are the bounds.
        maker: Holds the starting configuration, which must have include_fast_ft=True.
        device: Where layers are trained, unless the starting configuration sets it; None is the CPU.
        checkpoint_every: Iterations between checkpoints, from which longer trials resume; None has none.

    Raises:
        RecipeError: Something else is in the space, or finetuning is off.
    """
    if not maker.base.include_fast_ft:
        raise RecipeError(
            "advanced_fastft_search needs include_fast_ft=True in the quantization configuration, got False"
        )
    values_of = _finetune_values(search_space)
    parameters: dict[str, Parameter] = {}
    for name, values in values_of.items():
        if name == JOINT:
            raise RecipeError(f"advanced_fastft_search cannot search {JOINT}; give NumIterations and LearningRate")
        if name not in _TUNED:
            raise RecipeError(
                f"advanced_fastft_search takes NumIterations and LearningRate, got {name!r}; set it in the "
                "quantization configuration's extra_options['FastFinetune']"
            )
        parameters[f"{_FINETUNE}{name}"] = _bounds(name, values)
    start = (maker.base.extra_options or {}).get("FastFinetune", {})
    fixed = None
    if device is not None and "OptimDevice" not in start:
        fixed = {"extra_options": {"FastFinetune": {"OptimDevice": device}}}
    build: NestedBuild | CheckpointBuild = NestedBuild(maker, fixed)
    if checkpoint_every is not None:
        with_checkpoints(maker({}), checkpoint_every)
        build = CheckpointBuild(NestedBuild(maker, fixed), checkpoint_every)
    return Space(parameters, build, name=f"finetuning parameters {device or ''}".strip())


def _finetune_values(search_space: Mapping[str, Any]) -> Mapping[str, Any]:
    options = search_space.get("extra_options") or {}
    unsupported = [name for name in search_space if name != "extra_options"] + [
        name for name in options if name != "FastFinetune"
    ]
    settings = options.get("FastFinetune")
    if unsupported or not isinstance(settings, Mapping) or not settings:
        problem = f"got {unsupported[0]!r}" if unsupported else "got none of them"
        raise RecipeError(
            "advanced_fastft_search takes search_space = {'extra_options': {'FastFinetune': {NumIterations and "
            f"LearningRate}}}}, {problem}"
        )
    return settings


def _bounds(name: str, values: Any) -> Parameter:
    if isinstance(values, Choice | IntRange | Uniform):
        return values
    if not isinstance(values, list | tuple) or not values:
        raise RecipeError(f"the bounds of {name} must be a list of numbers, got {values!r}")
    for value in values:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not (is_whole if name == "NumIterations" else is_whole or isinstance(value, float)) or value <= 0:
            raise RecipeError(f"the bounds of {name} must be numbers above 0, got {value!r}")
    if name == "NumIterations":
        return IntRange(min(values), max(values))
    return Uniform(float(min(values)), float(max(values)), log=True)
