"""Configurations as text: what a trial tries, and what differs from another one."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from quantry.autosearch.target_space import KEPT, LAYERS, RECIPE, SHARE
from quantry.recipe import EqualizeOptions, brief

_SAME = "the same"


def value_text(value: Any) -> str:
    """Return a parameter's value as short text."""
    if value is None or value == ():
        return "none"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, EqualizeOptions):
        chosen = (getattr(value, part.name) for part in fields(value))
        return " and ".join(brief(method) for method in chosen if method is not None) or "none"
    return brief(value)


def assignment_text(assignment: Mapping[str, Any], *, named: bool = True) -> str:
    """Return an assignment as short text, without parameters that leave the recipe as it is.

    Args:
        assignment: Parameter names to values.
        named: Whether to write the names of the parameters too.
    """
    if not named:
        return ", ".join(value_text(value) for value in assignment.values())
    return ", ".join(_parts(assignment, assignment)) or "the recipe as it is"


def difference_text(assignment: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """Return what an assignment has that the best one so far has not.

    Args:
        assignment: Of the trial.
        best: Of the best trial before it; None if there was none.
    """
    if best is None:
        return assignment_text(assignment)
    if assignment.get(RECIPE) != best.get(RECIPE):
        return assignment_text(assignment)
    changed = {name: value for name, value in assignment.items() if name not in best or not _equal(best[name], value)}
    # A parameter that is not active any more says nothing: the one it depends on has changed too.
    return ", ".join(_parts(changed, assignment, back=True)) or _SAME


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _parts(shown: Mapping[str, Any], assignment: Mapping[str, Any], *, back: bool = False) -> list[str]:
    """Return a text for each parameter.

    Args:
        shown: The parameters to write.
        assignment: All parameters.
        back: Also write parameters that leave the recipe as it is: they differ from what is compared with.
    """
    found = []
    for name, value in shown.items():
        if isinstance(value, str) and value == KEPT:
            if back:
                found.append(f"{_short(name)} as in the recipe")
            continue
        if name == RECIPE:
            found.insert(0, str(value))
        elif name == LAYERS and SHARE in assignment:
            found.append(_worst(assignment[SHARE], value))
        elif name == SHARE:
            if LAYERS not in shown:
                found.append(_worst(value, assignment[LAYERS]))
        else:
            found.append(f"{_short(name)} {value_text(value)}")
    return found


def _worst(share: float, change: Any) -> str:
    return f"worst {100 * share:.3g} % of the layers {change}"


def _short(name: str) -> str:
    """Return the last part of a path."""
    return name.rpartition(".")[2]
