"""Options of a search."""

import pytest

from quantry.autosearch import SearchOptions, StopConditions, budget_seconds
from quantry.autosearch.options import tolerance_of
from quantry.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30min", 1800), ("2h", 7200), ("1h30m", 5400), (90, 90), ("45 s", 45), ("30", 30), ("1.5", 1.5)],
)
def test_budget_is_read_in_common_spellings(text: str | float, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["soon", "1.2.3", "-30", "5 parsecs", "", None])
def test_budget_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        budget_seconds(text)


def test_tolerance_may_be_absolute_or_a_share() -> None:
    assert tolerance_of(0.5, 80.0) == 0.5
    assert tolerance_of("1%", -80.0) == pytest.approx(0.8)
    assert tolerance_of(None, 80.0) is None
    with pytest.raises(RecipeError, match="other than 0"):
        tolerance_of("1%", 0.0)


def test_minus_one_switches_a_stop_condition_off() -> None:
    assert StopConditions(-1, -1, -1, -1) == StopConditions()


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": "tpee"},
        {"objectives": ("latency",)},
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
        {"stop": {"iterations": 1}},
        {"devices": "gpu"},
        {"devices": ("cuda",)},
        {"sampler": "cmaes", "objectives": ("accuracy", "size")},
    ],
)
def test_options_that_mean_nothing_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(RecipeError):
        SearchOptions(**given)  # type: ignore[arg-type]


def test_one_device_and_one_objective_need_no_tuple() -> None:
    options = SearchOptions(devices="cuda:1", objectives="accuracy")  # type: ignore[arg-type]
    assert (options.devices, options.objectives) == (("cuda:1",), ("accuracy",))


@pytest.mark.parametrize("given", [{"iterations": 0}, {"seconds": -2}, {"n_candidates": True}])
def test_stop_conditions_must_be_positive(given: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        StopConditions(**given)  # type: ignore[arg-type]
