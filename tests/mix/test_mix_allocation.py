"""Allocations against the best of all combinations, counted out."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantry.errors import RecipeError
from quantry.mix.allocation import Problem, allocate, greedy, linear_program, table
from quantry.recipe import Exact, Greedy


@st.composite
def problems(draw: st.DrawFn, *, whole: bool) -> Problem:
    groups, choices = draw(st.integers(1, 5)), draw(st.integers(2, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    noise = np.exp(rng.normal(size=(groups, choices)) * draw(st.sampled_from([0.5, 4.0])))
    cost = rng.integers(0, 9, (groups, choices)).astype(float) if whole else rng.random((groups, choices)) * 10
    least, most = cost.min(axis=1).sum(), cost.max(axis=1).sum()
    return Problem(noise, cost, float(least + draw(st.floats(0, 1)) * (most - least)))


def best(problem: Problem) -> float:
    """Return the least error of all combinations that fit."""
    rows = np.arange(len(problem.noise))
    combinations = itertools.product(range(problem.noise.shape[1]), repeat=len(rows))
    return min(
        problem.noise[rows, chosen].sum()
        for chosen in map(list, combinations)
        if problem.cost[rows, chosen].sum() <= problem.budget * (1 + 1e-12)
    )


def value(problem: Problem, chosen: np.ndarray) -> float:
    rows = np.arange(len(chosen))
    assert problem.cost[rows, chosen].sum() <= problem.budget * (1 + 1e-9)
    return float(problem.noise[rows, chosen].sum())


@settings(max_examples=60, deadline=None)
@given(problems(whole=True))
def test_table_of_whole_numbers_finds_the_best(problem: Problem) -> None:
    assert value(problem, table(problem)) == pytest.approx(best(problem))


@settings(max_examples=40, deadline=None)
@given(problems(whole=False))
def test_exact_allocation_finds_the_best(problem: Problem) -> None:
    # A solver's tolerance is relative to the largest error.
    assert value(problem, allocate(problem, Exact())) <= best(problem) * (1 + 1e-3) + 1e-5 * problem.noise.max()


@settings(max_examples=40, deadline=None)
@given(problems(whole=False))
def test_linear_program_and_table_agree(problem: Problem) -> None:
    found = linear_program(problem)
    assert found is not None
    assert value(problem, found) <= value(problem, table(problem)) + 1e-5 * problem.noise.max()


@settings(max_examples=40, deadline=None)
@given(problems(whole=False))
def test_greedy_allocation_fits_and_is_never_better_than_the_best(problem: Problem) -> None:
    assert value(problem, greedy(problem)) >= best(problem) * (1 - 1e-12)


def test_budget_below_the_cheapest_choice_raises() -> None:
    problem = Problem(np.ones((2, 2)), np.array([[2.0, 3.0], [1.0, 5.0]]), 2.5)
    with pytest.raises(RecipeError, match=r"must be at least 3.*got 2\.5"):
        allocate(problem, Greedy())


def test_allocation_without_scipy_uses_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    problem = Problem(np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 1.0]]), 1.0)
    assert linear_program(problem) is None
    assert allocate(problem, Exact()).tolist() == [0, 1]


def test_errors_of_very_different_sizes_are_distinguished() -> None:
    noise = np.column_stack([10.0 ** np.arange(-12, 6), np.zeros(18)])
    cost = np.tile([0.0, 1.0], (18, 1))
    chosen = allocate(Problem(noise, cost, 9.0), Exact())
    assert chosen.tolist() == [0] * 9 + [1] * 9


def test_errors_that_are_not_finite_count_as_the_largest() -> None:
    noise = np.array([[np.inf, 0.0], [5.0, 0.0], [np.nan, 1.0]])
    chosen = allocate(Problem(noise, np.tile([0.0, 1.0], (3, 1)), 2.0), Exact())
    assert chosen.tolist() == [1, 1, 0]
