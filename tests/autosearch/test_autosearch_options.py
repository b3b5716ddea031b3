"""Options of a search."""

import pytest

from quantry.autosearch import SearchOptions, budget_seconds
from quantry.errors import RecipeError
from quantry.recipe.search_options import accepted_drop


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30min", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("2 hours", 7200),
        ("5minutes", 300),
        (90, 90),
        ("45 s", 45),
        ("30", 30),
        ("1.5", 1.5),
    ],
)
def test_budget_is_read_in_common_spellings(text: str | float, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["soon", "1.2.3", "-30", "5 parsecs", "", None])
def test_budget_that_is_not_a_duration_is_rejected(text: str) -> None:
    with pytest.raises(RecipeError):
        budget_seconds(text)


def test_tolerance_is_absolute_or_a_percentage() -> None:
    assert accepted_drop(0.5, 80.0) == 0.5
    assert accepted_drop("1%", -80.0) == pytest.approx(0.8)
    assert accepted_drop(None, 80.0) is None
    with pytest.raises(RecipeError, match="other than 0"):
        accepted_drop("1%", 0.0)


def test_minus_one_switches_a_limit_off() -> None:
    assert SearchOptions(n_trials=-1, budget=-1, n_candidates=-1, patience=-1) == SearchOptions()


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": "tpee"},
        {"objectives": ("latency", "accuracy")},
        {"objectives": ("accuracy", "accuracy")},
        {"objectives": ("accuracy", "sice")},
        {"n_jobs": 0},
        {"threads": 0},
        {"trial_timeout": 0},
        {"tolerance": "much"},
        {"tolerance": -0.5},
        {"tolerance": "-1%"},
        {"tolerance": float("nan")},
        {"keep_models": "some"},
        {"n_jobs": "2"},
        {"n_jobs": 2.5},
        {"seed": "a"},
        {"racing": "no"},
        {"objectives": 3},
        {"sampler": 3},
        {"devices": "gpu"},
        {"devices": ("cuda",)},
        {"sampler": "cmaes", "objectives": ("accuracy", "size")},
    ],
)
def test_invalid_options_are_rejected(given: dict[str, object]) -> None:
    with pytest.raises(RecipeError):
        SearchOptions(**given)  # type: ignore[arg-type]


def test_single_device_and_objective_need_no_tuple() -> None:
    options = SearchOptions(devices="cuda:1", objectives="accuracy")  # type: ignore[arg-type]
    assert (options.devices, options.objectives) == (("cuda:1",), ("accuracy",))


def test_accuracy_is_always_the_first_objective() -> None:
    assert SearchOptions(objectives=("latency",)).objectives == ("accuracy", "latency")


def test_text_of_the_command_line_becomes_numbers() -> None:
    options = SearchOptions(tolerance="0.5", budget="1h")
    assert (options.tolerance, options.budget, options.seconds) == (0.5, 3600.0, 3600.0)


@pytest.mark.parametrize("given", [{"n_trials": 0}, {"budget": -2}, {"n_candidates": True}, {"patience": 0}])
def test_limits_must_be_positive(given: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        SearchOptions(**given)  # type: ignore[arg-type]
