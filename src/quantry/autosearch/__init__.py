"""Finds the recipe: give a model, data, a metric and a budget, get the best model and the reasons."""

from quantry.autosearch.data_split import split_data
from quantry.autosearch.default_space import NAMED_SPACES, accuracy_space, default_space, named_space
from quantry.autosearch.evaluator import Direction, Evaluator, Score
from quantry.autosearch.finetuning import TwoStageResult, finetune_space, in_legs, run_two_stage
from quantry.autosearch.native import SearchSettings, search
from quantry.autosearch.options import OBJECTIVES, SAMPLERS, SearchOptions, StopConditions, budget_seconds
from quantry.autosearch.parameter import Choice, IntRange, Parameter, Uniform
from quantry.autosearch.recipe_path import with_fields
from quantry.autosearch.result import SearchResult
from quantry.autosearch.run import run_search
from quantry.autosearch.space import AnySpace, Assignment, Space, SpaceUnion
from quantry.autosearch.table import by_difference
from quantry.autosearch.trial import Trial, TrialState
from quantry.memo import function_digest

__all__ = [
    "NAMED_SPACES",
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
    "SearchSettings",
    "Space",
    "SpaceUnion",
    "StopConditions",
    "Trial",
    "TrialState",
    "TwoStageResult",
    "Uniform",
    "accuracy_space",
    "budget_seconds",
    "by_difference",
    "default_space",
    "finetune_space",
    "function_digest",
    "in_legs",
    "named_space",
    "run_search",
    "run_two_stage",
    "search",
    "split_data",
    "with_fields",
]
