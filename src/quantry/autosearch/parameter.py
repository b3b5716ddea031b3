"""What one knob of a search may be set to."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from quantry.errors import RecipeError

Condition = Mapping[str, Any]
"""Names of other parameters to the value, or a list, tuple or set of the values, that this parameter goes with."""


@dataclass(frozen=True)
class Choice:
    """One of several values, of any type.

    Attributes:
        values: The values, at least one; equal ones count once.
        only_if: The parameter exists only where these other parameters have these values.

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
    """Any real number between two bounds.

    Attributes:
        low: The least.
        high: The largest.
        log: Equal factors are equally likely, not equal differences; then ``low`` is above 0.
        step: Only ``low``, ``low + step`` and so on; None takes every number. Does not go with ``log``.
        only_if: The parameter exists only where these other parameters have these values.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    only_if: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_bounds("Uniform", self.low, self.high, log=self.log)
        if self.step is not None and (self.log or not self.step > 0):
            raise RecipeError(f"Uniform.step must be above 0 and does not go with log, got {self.step!r}")


@dataclass(frozen=True)
class IntRange:
    """Any integer between two bounds, both included.

    Attributes:
        low: The least.
        high: The largest.
        log: Equal factors are equally likely, not equal differences; then ``low`` is at least 1.
        step: Only ``low``, ``low + step`` and so on; does not go with ``log``.
        only_if: The parameter exists only where these other parameters have these values.
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
    """Return every value the parameter may have, in order, or None where there are too many to name."""
    if isinstance(parameter, Choice):
        return tuple(parameter.values)
    if isinstance(parameter, IntRange):
        return tuple(range(parameter.low, parameter.high + 1, parameter.step))
    if parameter.step is None:
        return (parameter.low,) if parameter.low == parameter.high else None
    count = math.floor((parameter.high - parameter.low) / parameter.step + 1e-9)
    return tuple(parameter.low + index * parameter.step for index in range(count + 1))


def first_value(parameter: Parameter) -> Any:
    """Return the first value that the parameter may have."""
    return parameter.values[0] if isinstance(parameter, Choice) else parameter.low


def own_value(parameter: Parameter, value: Any) -> Any:
    """Return a value as the parameter itself writes it.

    Raises:
        RecipeError: It is none that the parameter may have.
    """
    if isinstance(parameter, Choice):
        if _is_among(value, parameter.values):
            return value
    elif not isinstance(value, bool) and isinstance(value, int | float):
        known = values_of(parameter)
        if known is None:
            if parameter.low <= value <= parameter.high:
                return float(value)
        elif (nearest := min(known, key=lambda other: abs(other - value))) == value or (
            isinstance(parameter, Uniform) and math.isclose(nearest, value, rel_tol=1e-9, abs_tol=1e-12)
        ):
            return nearest
    raise RecipeError(f"a value must be one that its parameter may have, got {value!r} for {parameter}")


def is_active(parameter: Parameter, assignment: Mapping[str, Any]) -> bool:
    """Say whether the parameter exists beside the values that others have."""
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
