"""The facts of a search as plain data, from a result in memory or from the search.json that every search writes."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantry.autosearch import SearchResult, search_summary
from quantry.autosearch.differences import assignment_text, value_text
from quantry.autosearch.target_space import KEPT
from quantry.errors import DataError
from quantry.files import read_regular
from quantry.recipe import Recipe, brief, from_plain
from quantry.report.facts import Plain

_ROUNDING = 1e-12


@dataclass(frozen=True)
class SearchFacts:
    """The content of a search's page.

    Attributes:
        title: The heading: the model's name where it is known.
        metric: Name of the score.
        direction: Whether the score is maximized or minimized.
        float_score: The float model's score; None while it is not known.
        tolerance: The largest accepted drop; None accepts every complete trial.
        objectives: Names of the objectives.
        model: The float model's name; empty if it is unknown.
        stopped_by: Why the search ended; None while it runs.
        is_limited: Whether it ended at a limit of time or trials, so that it may continue.
        seconds: Its duration.
        best: Number of the best trial; None if there is none.
        pareto: Numbers of the trials on the Pareto front.
        evaluation_share: Samples evaluated, divided by those of evaluating every trial in full; None if unknown.
        notes: Messages for the user.
        trials: One entry per trial: the fields of search.json, with a drop of 0 where only the order of summation
            differs, short texts for the assignment and for all of it (``configuration``), ``at`` for the seconds since
            the start, and ``recipe`` for the fields that differ from the first trial's recipe.
        base: Values of the first trial's recipe, for the fields that differ in any trial.
        importance: Parameters with the share of the variance of the score that each explains alone.
    """

    title: str
    metric: str
    direction: str
    float_score: float | None
    tolerance: float | None
    objectives: tuple[str, ...]
    model: str
    stopped_by: str | None
    is_limited: bool
    seconds: float
    best: int | None
    pareto: tuple[int, ...]
    evaluation_share: float | None
    notes: tuple[str, ...]
    trials: tuple[Plain, ...]
    base: Mapping[str, str]
    importance: tuple[Plain, ...]

    @property
    def winner(self) -> Plain | None:
        """The best trial."""
        return None if self.best is None else self.trials[self.best]

    def for_page(self) -> Plain:
        """Return what the scripts of the page read."""
        results = ("number", "state", "score", "drop", "accepted", "objectives", "at")
        fields = (*results, "assignment", "configuration", "recipe")
        return {
            "title": self.title,
            "metric": self.metric,
            "direction": self.direction,
            "float": self.float_score,
            "tolerance": self.tolerance,
            "objectives": list(self.objectives),
            "seconds": round(self.seconds, 2),
            "best": self.best,
            "pareto": list(self.pareto),
            "running": self.stopped_by is None,
            "base": dict(self.base),
            "importance": [{**entry, "values": None} for entry in self.importance],
            "trials": [{name: trial[name] for name in fields} for trial in self.trials],
        }


def facts_of_result(result: SearchResult, title: str) -> SearchFacts:
    """Return the facts of a finished search.

    Args:
        result: The result of `quantry.search`.
        title: The heading; empty takes the model's name.
    """
    return facts_of_summary(search_summary(result), title, recipes=[trial.recipe for trial in result.trials])


def read_facts(folder: str | Path, title: str = "") -> SearchFacts:
    """Return the facts of a search, running or finished, from its output directory.

    Args:
        folder: The output directory.
        title: The heading; empty takes the model's name.

    Raises:
        DataError: The folder has no search.
    """
    file = Path(folder) / "search.json"
    try:
        summary = json.loads(read_regular(file))
        return facts_of_summary(summary, title or f"{summary.get('model') or Path(folder).resolve().name}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the folder of a search must hold a readable search.json, got {type(error).__name__}: {error}; in {folder}"
        ) from error


def facts_of_summary(summary: Plain, title: str, recipes: Sequence[Recipe] | None = None) -> SearchFacts:
    """Return the facts of a search.

    Args:
        summary: The content of search.json.
        title: The heading; empty takes the model's name.
        recipes: The trials' recipes; None reads them from the summary.
    """
    trial_recipes = [from_plain(trial["recipe"]) for trial in summary["trials"]] if recipes is None else list(recipes)
    changes = [_changes(trial_recipes[0], recipe) for recipe in trial_recipes]
    base = {path: ours for change in changes for path, (ours, _) in change.items()}
    times, reference = _times(summary), summary["float"]
    float_score = None if reference is None else _number(reference["score"])
    trials = tuple(
        {
            **{name: _number(value) for name, value in trial.items()},
            "drop": _cleaned(_number(trial["drop"]), float_score),
            "objectives": {name: _number(value) for name, value in trial["objectives"].items()},
            "assignment": {
                name: value_text(_assigned(recipe, name, value)) for name, value in dict(trial["assignment"]).items()
            },
            "configuration": _configuration(recipe, dict(trial["assignment"])),
            "recipe": {path: theirs for path, (_, theirs) in change.items()},
            "at": round(at, 2),
        }
        for trial, recipe, change, at in zip(summary["trials"], trial_recipes, changes, times, strict=True)
    )
    return SearchFacts(
        title=title or summary.get("model") or "search",
        metric=summary.get("metric") or "score",
        direction=summary["direction"],
        float_score=float_score,
        tolerance=_number(summary["tolerance"]),
        objectives=tuple(summary["objectives"]),
        model=summary.get("model") or "",
        stopped_by=summary["stopped_by"],
        is_limited=summary.get("stop") in ("time", "trials"),
        seconds=summary["seconds"],
        best=summary["best"],
        pareto=tuple(summary["pareto"]),
        evaluation_share=summary.get("evaluation_share"),
        notes=tuple(summary["notes"]),
        trials=trials,
        base=base,
        importance=_importance(trials),
    )


def _cleaned(drop: float | None, float_score: float | None) -> float | None:
    """Return a drop; 0 for a difference that only comes from another order of summation."""
    reference = abs(float_score or 0.0)
    tiny = drop is not None and math.isfinite(reference) and abs(drop) < _ROUNDING * reference
    return 0.0 if tiny else drop


def _number(value: Any) -> Any:
    """Return a number that search.json wrote as text, because JSON has no infinities, as a number."""
    return float(value) if value in ("inf", "-inf", "nan") else value


def _changes(first: Recipe, recipe: Recipe) -> dict[str, tuple[str, str]]:
    return {
        change.path: (_as_yaml(brief(change.ours)), _as_yaml(brief(change.theirs))) for change in first.diff(recipe)
    }


def _as_yaml(value: str) -> str:
    return {"None": "none", "True": "true", "False": "false"}.get(value, value)


def _configuration(recipe: Recipe, assignment: Plain) -> str:
    """Return what a trial changes, as the terminal shows it; what stays as in the recipe is omitted."""
    return assignment_text(
        {name: KEPT if value == KEPT else _assigned(recipe, name, value) for name, value in assignment.items()}
    )


def _assigned(recipe: Recipe, path: str, value: Any) -> Any:
    """Return the value of a parameter with its type from the recipe; search.json has it as text only."""
    node: Any = recipe
    for part in path.split("."):
        if isinstance(node, tuple) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif hasattr(node, part):
            node = getattr(node, part)
        else:
            return value
    return node


def _times(summary: Plain) -> list[float]:
    """Return when each trial finished, in seconds since the start.

    A trial without a recorded time, from before an interruption, gets one in proportion to the work done until then.
    """
    trials = summary["trials"]
    work = [trial["seconds"] for trial in trials]
    total = sum(work) or 1.0
    times, done, latest = [], 0.0, 0.0
    for trial, seconds in zip(trials, work, strict=True):
        done += seconds
        at = trial.get("at")
        latest = max(latest, done / total * summary["seconds"] if at is None else at)
        times.append(latest)
    return times


def _importance(trials: Sequence[Plain]) -> tuple[Plain, ...]:
    """Return how much of the variance of the drop each parameter explains alone, most important first.

    The share is the variance between the means of a parameter's values, divided by the whole variance, as in a one-way
    analysis of variance. 1 means that the parameter decides alone; parameters that act together share their effect.
    """
    drops: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if isinstance(trial["drop"], int | float) and math.isfinite(trial["drop"]):
            for name, value in trial["assignment"].items():
                drops[name][value].append(float(trial["drop"]))
    entries = []
    for name, values in drops.items():
        if len(values) < 2:
            continue
        all_drops = [drop for group in values.values() for drop in group]
        mean = sum(all_drops) / len(all_drops)
        variance = sum((drop - mean) ** 2 for drop in all_drops)
        between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in values.values())
        entries.append(
            {"parameter": name, "share": between / variance if variance > 0 else 0.0, "values": dict(values)}
        )
    return tuple(sorted(entries, key=lambda entry: -entry["share"]))
