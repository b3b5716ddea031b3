"""What a search returns, as the dictionaries that AMD Quark returns, with more in them."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from quantry.autosearch import SearchResult, Trial

_LOG = logging.getLogger("quantry")

Candidate = dict[str, Any]


def candidate(
    trial: Trial, result: SearchResult, index: int | None, configuration: Mapping[str, Any], metric: str
) -> Candidate:
    """Return one trial.

    Args:
        trial: The trial.
        result: The search it is from.
        index: Its place in ``all_configs``; None where it is from a range.
        configuration: Its configuration.
        metric: What the score is.

    Returns:
        ``config_index``, ``difference`` (how much worse than the float model, in the unit of the score) and
        ``model_path``, as in AMD Quark; and ``within_tolerance``, ``configuration``, ``recipe``, ``metrics`` and
        ``timings``.
    """
    return {
        "config_index": trial.number if index is None else index,
        "difference": trial.drop,
        "model_path": None if trial.model_path is None else str(trial.model_path),
        "within_tolerance": trial.accepted,
        "configuration": configuration,
        "recipe": trial.recipe,
        "metrics": {
            "metric": metric,
            "score": trial.score,
            "interval": trial.interval,
            "float_score": result.reference.value,
            **{name: value for name, value in trial.objectives.items() if name != "accuracy"},
        },
        "timings": {"seconds": trial.seconds, "computed": dict(trial.computed), "reused": list(trial.reused)},
    }


def candidates(
    result: SearchResult, describe: Callable[[Trial], tuple[int | None, Mapping[str, Any]]], metric: str
) -> list[Candidate]:
    """Return the trials within tolerance in the order they were tried, or the best one where there are none.

    Args:
        result: The search.
        describe: Index and configuration of a trial.
        metric: What the score is.
    """
    if result.candidates or result.best is None:
        return [candidate(trial, result, *describe(trial), metric) for trial in result.candidates]
    _LOG.warning("%s; it is returned all the same", result.notes[-1])
    return [candidate(result.best, result, *describe(result.best), metric)]
