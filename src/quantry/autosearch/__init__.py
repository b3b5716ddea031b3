"""Automatic search: finds the recipe whose quantized model scores best on the user's metric within a budget.

The life of a `Trial`, file by file::

    run.py            `quantry.search`: turns what the user brings into data, an evaluator and a space
    engine.py         sets up the search and returns its result (result.py)
    proposer.py       proposes the trial: the next of a list, or drawn by an Optuna sampler
    scheduler.py      assigns it to a worker; retries it if the worker died; defers it if another one has the same model
    workers.py        runs it in this process or in worker processes (ray_workers.py: on a cluster)
    trial_runner.py   quantizes, writes the model, measures the objectives and evaluates
    racing.py         with racing: evaluates on growing subsets of the samples and prunes the trial if it cannot win
    study.py          saves the result in the Optuna study; from here on the trial is never run again
    state.py          records it: compares with the float model, ranks, keeps or deletes the model, decides when to stop
    output.py         reports it in the log and the terminal
    summary.py        writes search.json
"""

from quantry.autosearch.data_split import split_data
from quantry.autosearch.default_space import NAMED_SPACES, accuracy_space, calibration_space, named_space
from quantry.autosearch.engine import run_search
from quantry.autosearch.evaluator import Direction, Evaluator, Score
from quantry.autosearch.finetuning import (
    TwoStageResult,
    finetune_space,
    run_two_stage,
    with_checkpoints,
)
from quantry.autosearch.labelled_data import LabelledData
from quantry.autosearch.parameter import Choice, IntRange, Parameter, Uniform
from quantry.autosearch.result import SearchComparison, SearchResult
from quantry.autosearch.run import search
from quantry.autosearch.space import AnySpace, Assignment, Space, SpaceUnion, with_fields
from quantry.autosearch.stop import Stop, StopKind
from quantry.autosearch.summary import SearchSummary, search_summary
from quantry.autosearch.target_space import target_space
from quantry.autosearch.trial import Trial, TrialState, by_drop
from quantry.autosearch.trial_row import cells, trial_texts
from quantry.memo import function_digest
from quantry.recipe.search_options import (
    OBJECTIVES,
    SAMPLERS,
    SearchOptions,
    budget_seconds,
    split_options,
    unknown_option,
)

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
    "LabelledData",
    "Parameter",
    "Score",
    "SearchComparison",
    "SearchOptions",
    "SearchResult",
    "SearchSummary",
    "Space",
    "SpaceUnion",
    "Stop",
    "StopKind",
    "Trial",
    "TrialState",
    "TwoStageResult",
    "Uniform",
    "accuracy_space",
    "budget_seconds",
    "by_drop",
    "calibration_space",
    "cells",
    "finetune_space",
    "function_digest",
    "named_space",
    "run_search",
    "run_two_stage",
    "search",
    "search_summary",
    "split_data",
    "split_options",
    "target_space",
    "trial_texts",
    "unknown_option",
    "with_checkpoints",
    "with_fields",
]
