"""Finds the recipe: give a model, data, a metric and a budget, get the best model and the reasons."""

from quantry.autosearch.evaluator import Direction, Evaluator, Score
from quantry.autosearch.options import OBJECTIVES, SAMPLERS, SearchOptions, StopConditions, budget_seconds
from quantry.autosearch.parameter import Choice, IntRange, Parameter, Uniform
from quantry.autosearch.recipe_path import with_fields
from quantry.autosearch.result import SearchResult
from quantry.autosearch.run import run_search
from quantry.autosearch.space import AnySpace, Assignment, Space, SpaceUnion
from quantry.autosearch.trial import Trial, TrialState

__all__ = [
    "OBJECTIVES",
    "SAMPLERS",
    "AnySpace",
    "Assignment",
    "Choice",
    "Direction",
    "Evaluator",
    "IntRange",
    "Parameter",
    "Score",
    "SearchOptions",
    "SearchResult",
    "Space",
    "SpaceUnion",
    "StopConditions",
    "Trial",
    "TrialState",
    "Uniform",
    "budget_seconds",
    "run_search",
    "with_fields",
]
