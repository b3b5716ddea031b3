"""How assignments are written in an Optuna study, and asked from its samplers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantry.autosearch.parameter import Choice, Parameter, Uniform, first_value, is_active
from quantry.autosearch.space import Assignment, Space

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

_SPACE = "space"
_LABEL_LENGTH = 60


def plain_values(space: Space, assignment: Assignment) -> dict[str, Any]:
    """Return an assignment as numbers: a choice by the index of its value."""
    return {name: _plain(space.parameters[name], value) for name, value in assignment.items()}


def from_plain_values(space: Space, plain: Mapping[str, Any]) -> Assignment:
    """Read what `plain_values` returned."""
    return {
        name: parameter.values[value] if isinstance(parameter, Choice) else value
        for name, value in plain.items()
        for parameter in (space.parameters[name],)
    }


def study_params(
    spaces: Sequence[Space], index: int, assignment: Assignment, *, flat: bool = False
) -> tuple[dict[str, Any], dict[str, "BaseDistribution"]]:
    """Return values and distributions of an assignment for a trial of the study.

    Args:
        spaces: All spaces.
        index: Which of them.
        assignment: The values.
        flat: Choices are written as integers, and parameters whose condition does not hold with their first value:
            samplers of continuous spaces learn from what all trials have, as numbers.
    """
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    if len(spaces) > 1:
        distributions[_SPACE] = _space_distribution(spaces)
        params[_SPACE] = index
    for name, parameter in spaces[index].parameters.items():
        if _is_constant(parameter) or (name not in assignment and not flat):
            continue
        key = _key(spaces, index, name)
        distributions[key] = _distribution(parameter, flat=flat)
        value = assignment[name] if name in assignment else first_value(parameter)
        params[key] = _written(parameter, value, flat=flat)
    return params, distributions


def suggest(trial: "optuna.trial.Trial", spaces: Sequence[Space], *, flat: bool = False) -> tuple[int, Assignment]:
    """Ask a sampler for a space and an assignment.

    Args:
        trial: A trial that was asked for.
        spaces: All spaces.
        flat: Ask for every parameter, also for those whose condition does not hold, so that the space of the study is
            the same in all trials; samplers of continuous spaces need that.
    """
    index = 0
    if len(spaces) > 1:
        index = trial._suggest(_SPACE, _space_distribution(spaces))
    chosen: dict[str, Any] = {}
    for name, parameter in spaces[index].parameters.items():
        active = is_active(parameter, chosen)
        if not active and not flat:
            continue
        value = _asked(trial, _key(spaces, index, name), parameter, flat=flat)
        if active:
            chosen[name] = value
    return index, chosen


def _asked(trial: "optuna.trial.Trial", key: str, parameter: Parameter, *, flat: bool) -> Any:
    if _is_constant(parameter):
        return first_value(parameter)
    written = trial._suggest(key, _distribution(parameter, flat=flat))
    if not isinstance(parameter, Choice):
        return written
    return parameter.values[written if flat else _labels(parameter).index(written)]


def _is_constant(parameter: Parameter) -> bool:
    return len(parameter.values) == 1 if isinstance(parameter, Choice) else parameter.low == parameter.high


def _key(spaces: Sequence[Space], index: int, name: str) -> str:
    # One name has one distribution in a study, and spaces may use a name with different values.
    return name if len(spaces) == 1 else f"{index}/{name}"


def _plain(parameter: Parameter, value: Any) -> Any:
    if not isinstance(parameter, Choice):
        return value
    return next(
        index
        for index, other in enumerate(parameter.values)
        if other is value or (type(other) is type(value) and other == value)
    )


def _written(parameter: Parameter, value: Any, *, flat: bool) -> Any:
    plain = _plain(parameter, value)
    return _labels(parameter)[plain] if isinstance(parameter, Choice) and not flat else plain


def _labels(parameter: Choice) -> list[str]:
    # The index makes them unique, the text makes a table of the study readable.
    return [f"{index}: {str(value)[:_LABEL_LENGTH]}" for index, value in enumerate(parameter.values)]


def _space_distribution(spaces: Sequence[Space]) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution

    return CategoricalDistribution(tuple(range(len(spaces))))


def _distribution(parameter: Parameter, *, flat: bool) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choice):
        labels = _labels(parameter)
        return IntDistribution(0, len(labels) - 1) if flat else CategoricalDistribution(tuple(labels))
    if isinstance(parameter, Uniform):
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    high = parameter.high - (parameter.high - parameter.low) % parameter.step
    return IntDistribution(parameter.low, high, log=parameter.log, step=parameter.step)
