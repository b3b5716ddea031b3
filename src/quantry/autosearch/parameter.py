"""The kinds of search parameters: `Choice`, `Uniform` and `IntRange`, each optionally conditional."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from quantry.errors import RecipeError

Condition = Mapping[str, Any]
"""Names of other parameters to the value, or a list, tuple or set of values, that they must have."""


@dataclass(frozen=True)
class Choice:
    """One of several values of any type.

    Attributes:
        values: The values, at least one; duplicates are removed.
        only_if: The parameter exists only if these other parameters have these values.

    Example:
        >>> Choice([99.99, 99.999], only_if={"method": "percentile"}).values
        (99.99, 99.999)
    """

    values: Sequence[Any]
    only_if: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.values, str) or not hasattr(self.values, "__iter__"):
            raise RecipeError(f"Choice.values must be a list of values, got {self.values!r}; write [{self.values!r}]")
        given = list(self.values)
        distinct = [value for index, value in enumerate(given) if not _is_among(value, given[:index])]
        if not distinct:
            raise RecipeError("Choice.values must hold at least one value, got none")
        object.__setattr__(self, "values", tuple(distinct))


@dataclass(frozen=True)
class Uniform:
    """A real number between two bounds.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        log: Sample on a logarithmic scale; needs ``low`` > 0.
        step: Restrict the values to ``low``, ``low + step`` and so on; None allows all. Cannot be combined with
            ``log``.
        only_if: The parameter exists only if these other parameters have these values.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    only_if: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_bounds("Uniform", self.low, self.high, log=self.log)
        if self.step is not None and (self.log or not self.step > 0):
            raise RecipeError(f"Uniform.step must be above 0 and cannot be combined with log, got {self.step!r}")


@dataclass(frozen=True)
class IntRange:
    """An integer between two bounds, both included.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        log: Sample on a logarithmic scale; needs ``low`` >= 1.
        step: Restrict the values to ``low``, ``low + step`` and so on; cannot be combined with ``log``.
        only_if: The parameter exists only if these other parameters have these values.
    """

    low: int
    high: int
    log: bool = False
    step: int = 1
    only_if: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise RecipeError(f"IntRange.{name} must be an integer, got {getattr(self, name)!r}")
        _check_bounds("IntRange", self.low, self.high, log=self.log)
        if self.step < 1 or (self.log and self.step != 1):
            raise RecipeError(f"IntRange.step must be at least 1, and 1 with log, got {self.step!r}")


Parameter = Choice | Uniform | IntRange


def values_of(parameter: Parameter) -> tuple[Any, ...] | None:
    """Return every value of the parameter in order; None if it is continuous."""
    if isinstance(parameter, Choice):
        return tuple(parameter.values)
    if isinstance(parameter, IntRange):
        return tuple(range(parameter.low, parameter.high + 1, parameter.step))
    if parameter.step is None:
        return (parameter.low,) if parameter.low == parameter.high else None
    # 0.3 / 0.1 is 2.9999999999999996 in binary; the margin keeps the last step.
    count = math.floor((parameter.high - parameter.low) / parameter.step + 1e-9)
    return tuple(parameter.low + index * parameter.step for index in range(count + 1))


def first_value(parameter: Parameter) -> Any:
    """Return the first value of the parameter."""
    return parameter.values[0] if isinstance(parameter, Choice) else parameter.low


def own_value(parameter: Parameter, value: Any) -> Any:
    """Return a value in the exact form in which the parameter lists it.

    Raises:
        RecipeError: It is not a value of the parameter.
    """
    if isinstance(parameter, Choice):
        if _is_among(value, parameter.values):
            return value
    elif not isinstance(value, bool) and isinstance(value, int | float):
        known = values_of(parameter)
        if known is None:
            if parameter.low <= value <= parameter.high:
                return float(value)
        # 0.1 + 2 * 0.1 is not 0.3, but a user who writes 0.3 means that step.
        elif (nearest := min(known, key=lambda other: abs(other - value))) == value or (
            isinstance(parameter, Uniform) and math.isclose(nearest, value, rel_tol=1e-9, abs_tol=1e-12)
        ):
            return nearest
    raise RecipeError(f"a value must be one of its parameter's values, got {value!r} for {parameter}")


def is_active(parameter: Parameter, assignment: Mapping[str, Any]) -> bool:
    """Return whether the parameter's condition holds for the values of the other parameters."""
    return all(
        name in assignment and _is_among(assignment[name], _alternatives(wanted))
        for name, wanted in parameter.only_if.items()
    )


def _alternatives(wanted: Any) -> list[Any]:
    return list(wanted) if isinstance(wanted, list | tuple | Set) else [wanted]


def _is_among(value: Any, others: Sequence[Any]) -> bool:
    # 1, 1.0 and True are equal in Python but mean different things as options.
    return any(type(value) is type(other) and value == other for other in others)


def _check_bounds(kind: str, low: float, high: float, *, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise RecipeError(f"{kind} needs finite bounds with low <= high, got low={low!r} and high={high!r}")
    if log and low <= 0:
        raise RecipeError(f"{kind}.low must be above 0 with log=True, got {low!r}")
