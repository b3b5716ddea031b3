"""Automatic search: finds the recipe whose quantized model scores best on the user's metric within a budget."""

from quantry.autosearch.data_split import split_data
from quantry.autosearch.default_space import NAMED_SPACES, accuracy_space, default_space, named_space
from quantry.autosearch.evaluator import Direction, Evaluator, Score
from quantry.autosearch.finetuning import (
    TwoStageResult,
    finetune_space,
    run_two_stage,
    with_checkpoints,
)
from quantry.autosearch.options import (
    OBJECTIVES,
    SAMPLERS,
    SearchOptions,
    budget_seconds,
    split_options,
    unknown_option,
)
from quantry.autosearch.parameter import Choice, IntRange, Parameter, Uniform
from quantry.autosearch.run import SearchResult, run_search, search
from quantry.autosearch.space import AnySpace, Assignment, Space, SpaceUnion, with_fields
from quantry.autosearch.trial import Trial, TrialState, by_drop
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
    "Space",
    "SpaceUnion",
    "Trial",
    "TrialState",
    "TwoStageResult",
    "Uniform",
    "accuracy_space",
    "budget_seconds",
    "by_drop",
    "default_space",
    "finetune_space",
    "function_digest",
    "named_space",
    "run_search",
    "run_two_stage",
    "search",
    "split_data",
    "split_options",
    "unknown_option",
    "with_checkpoints",
    "with_fields",
]
