"""Search spaces as nested dictionaries of lists."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from quantry.autosearch import Assignment, Choice, IntRange, Parameter, Space, Uniform
from quantry.errors import RecipeError, nearest_spelling
from quantry.memo import fingerprint
from quantry.onnx.auto_search.conditions import Condition, conditions_of
from quantry.onnx.auto_search.configuration import Configuration, RecipeMaker, flattened, nested
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.options import FIELDS, NESTED, ROWS
from quantry.recipe import Recipe

_LOG = logging.getLogger("quantry")
_RANGE_KEYS = ("type", "low", "high", "step", "log")


class SearchSpace:
    """A space of configurations: fields of QuantizationConfig, keys of ``extra_options`` and of ``FastFinetune``.

    Every leaf is a list of candidate values, or a range ``{"type": "int" or "float", "low": ..., "high": ..., "step":
    ..., "log": ...}``. Options that mean something only beside certain values of others (Percentile without the
    percentile method, FastFinetune without include_fast_ft ...) exist only there, so that no configuration is tried
    twice under two names.

    Args:
        space: The nested dictionary.
        base: The starting configuration, for what the space does not mention; None has the defaults.

    Raises:
        RecipeError: A key is unknown, or a leaf is no list.

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
        """Return every configuration once, those that cannot be had excepted.

        The first key changes slowest. What was left out is counted in the log, with the reasons.

        Raises:
            RecipeError: The space has a range, whose values cannot be listed.
        """
        kept, invalid, equivalent = self._filtered
        _LOG.info(
            "search space: %d configurations; %d are invalid and %d mean the same as another",
            len(kept),
            sum(invalid.values()),
            equivalent,
        )
        for reason, count in sorted(invalid.items(), key=lambda entry: -entry[1]):
            _LOG.info("  %d invalid: %s", count, reason)
        return [nested(assignment) for assignment in kept.values()]

    def place_of(self, recipe: Recipe) -> int | None:
        """Return where in `get_all_configs` a recipe's configuration is; None where it is not."""
        return self._places.get(recipe)

    @property
    def is_finite(self) -> bool:
        """Whether every configuration can be listed."""
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
        kept: dict[Recipe, Assignment] = {}
        invalid: dict[str, int] = {}
        valid = 0
        for assignment in space.assignments():
            try:
                recipe = space.build(assignment)
            except RecipeError as error:
                invalid[str(error)] = invalid.get(str(error), 0) + 1
                continue
            valid += 1
            kept.setdefault(recipe, assignment)
        return kept, invalid, valid - len(kept)


@dataclass(frozen=True)
class NestedBuild:
    """Makes recipes of flat assignments.

    Attributes:
        maker: Knows the starting configuration.
        fixed: What all configurations have besides, as nested dictionaries.
    """

    maker: RecipeMaker
    fixed: Mapping[str, Any] | None = None

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe of an assignment."""
        return self.maker(self.configuration(assignment))

    def configuration(self, assignment: Assignment) -> Configuration:
        """Return an assignment as nested dictionaries, with what is fixed."""
        return nested({**flattened(self.fixed or {}), **assignment})


def generate_all_configs(space: Mapping[str, Any], base: QuantizationConfig | None = None) -> list[Configuration]:
    """Return every configuration of a space; see `SearchSpace`."""
    return SearchSpace(space, base).get_all_configs()


def _leaves(space: Mapping[str, Any]) -> Iterator[tuple[str, Parameter]]:
    """Yield dotted names and parameters, in the order of the dictionaries, fields before options."""
    if not isinstance(space, Mapping):
        raise RecipeError(f"a search space must be a dict of lists, got {type(space).__name__}")
    _check_known(space, (*FIELDS, "extra_options"), "a search space")
    yield from ((name, _parameter(value, name)) for name, value in space.items() if name != "extra_options")
    options = space.get("extra_options") or {}
    _check_known(options, tuple(ROWS), "extra_options of a search space")
    levels = {name for name, value in options.items() if isinstance(value, Mapping) and not _is_range(value)}
    for name, value in options.items():
        if name not in levels:
            yield f"extra_options.{name}", _parameter(value, f"extra_options[{name!r}]")
    for name in (name for name in options if name in levels):
        if name in NESTED:
            _check_known(options[name], tuple(row.key for row in NESTED[name]), f"extra_options[{name!r}]")
        for key, value in options[name].items():
            yield f"extra_options.{name}.{key}", _parameter(value, f"extra_options[{name!r}][{key!r}]")


def _check_known(given: object, known: tuple[str, ...], where: str) -> None:
    if not isinstance(given, Mapping):
        raise RecipeError(f"{where} must be a dict, got {type(given).__name__}")
    for name in given:
        if name not in known:
            raise RecipeError(f"{where} must hold known keys, got {name!r}{nearest_spelling(str(name), known)}")


def _is_range(value: object) -> bool:
    return isinstance(value, Mapping) and "low" in value and "high" in value


def _parameter(value: object, where: str) -> Parameter:
    if isinstance(value, Choice | Uniform | IntRange):
        return value
    if isinstance(value, Mapping) and _is_range(value):
        return range_parameter(value, where)
    if isinstance(value, list | tuple):
        if not value:
            raise RecipeError(f"{where} of a search space must list at least one value, got none")
        return Choice(tuple(value))
    raise RecipeError(f"{where} of a search space must be a list of values, got {value!r}; write [{value!r}]")


def range_parameter(value: Mapping[str, Any], where: str) -> Uniform | IntRange:
    """Return the parameter of a range such as ``{"type": "float", "low": 1e-6, "high": 1e-4, "log": True}``.

    Raises:
        RecipeError: It is no range.
    """
    _check_known(value, _RANGE_KEYS, f"the range of {where}")
    whole = isinstance(value["low"], int) and isinstance(value["high"], int)
    kind = value.get("type", "int" if whole else "float")
    if kind not in ("int", "float"):
        raise RecipeError(f"the range of {where} must have the type 'int' or 'float', got {kind!r}")
    log, step = bool(value.get("log", False)), value.get("step")
    if kind == "int":
        return IntRange(value["low"], value["high"], log, 1 if step is None else step)
    return Uniform(float(value["low"]), float(value["high"]), log, step)


def _conditional(leaves: dict[str, Parameter], base: QuantizationConfig) -> dict[str, Parameter]:
    """Return the parameters with the conditions under which they mean something; those that never do are left out."""
    parameters: dict[str, Parameter] = {}
    for name, parameter in leaves.items():
        only_if: dict[str, Any] | None = dict(parameter.only_if)
        for condition in conditions_of(name):
            only_if = _joined(only_if, _requirement(condition, leaves, base), condition)
            if only_if is None:
                _LOG.info("search space: %s has no effect, because nowhere %s", name, condition.reads)
                break
        if only_if is not None:
            parameters[name] = replace(parameter, only_if=only_if)
    dropped = [
        name for name, parameter in parameters.items() if any(key not in parameters for key in parameter.only_if)
    ]
    return {name: parameter for name, parameter in parameters.items() if name not in dropped}


def _requirement(condition: Condition, leaves: Mapping[str, Parameter], base: QuantizationConfig) -> list[Any] | bool:
    """Return the values of the other option that are asked for, or whether it always or never is as it must be."""
    owner = leaves.get(condition.owner)
    if isinstance(owner, Choice):
        holding = [value for value in owner.values if condition.holds(value)]
        # The other may exist only beside certain values itself, so that even all of its values are a condition.
        if len(holding) == len(owner.values) and not conditions_of(condition.owner):
            return True
        return holding or False
    given = flattened({"extra_options": base.extra_options or {}})
    value = given.get(condition.owner, getattr(base, condition.owner, condition.default))
    return condition.holds(value)


def _joined(only_if: dict[str, Any] | None, required: list[Any] | bool, condition: Condition) -> dict[str, Any] | None:
    if only_if is None or required is False:
        return None
    return only_if if required is True else only_if | {condition.owner: required}
