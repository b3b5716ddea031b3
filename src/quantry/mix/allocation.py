"""Chooses one of several types for each group so that the error is smallest within a budget.

With noise n[g, k] and cost c[g, k] of choice k for group g::

    minimise  sum_g n[g, k_g]     subject to     sum_g c[g, k_g] <= budget
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quantry.errors import RecipeError
from quantry.recipe import Allocation, Greedy

Floats = npt.NDArray[np.float64]
Choices = npt.NDArray[np.int64]

_TABLE_STEPS = 20_000
"""Resolution of the table if costs are not small integers: steps of the budget that the cheapest choices leave."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The choices.

    Attributes:
        noise: Error of each choice, [groups, choices].
        cost: Its cost, of the same shape, not negative.
        budget: Upper bound of the total cost.
    """

    noise: Floats
    cost: Floats
    budget: float


def allocate(problem: Problem, how: Allocation) -> Choices:
    """Return the choice of each group, [groups].

    Args:
        problem: The choices.
        how: Greedy, or the best of all combinations.

    Raises:
        RecipeError: Not even the cheapest choices fit the budget.
    """
    cheapest = float(problem.cost.min(axis=1).sum())
    if cheapest > problem.budget * (1 + 1e-12):
        raise RecipeError(
            f"the budget of mixed precision must be at least {cheapest:.6g}, which the cheapest types of all layers "
            f"cost, got {problem.budget:.6g}"
        )
    if not np.isfinite(problem.noise).all():
        # An overflow in the float model: no choice of a type explains it, and solvers need numbers.
        largest = problem.noise[np.isfinite(problem.noise)].max(initial=1.0)
        problem = replace(problem, noise=np.nan_to_num(problem.noise, nan=largest, posinf=largest))
    found = greedy(problem)
    if isinstance(how, Greedy):
        return found
    # Errors span more orders of magnitude than the tolerances of a solver, so its answer is only one of three.
    others = (table(problem), linear_program(problem))
    return min((found, *(entry for entry in others if entry is not None)), key=lambda entry: _left(problem, entry))


def _left(problem: Problem, chosen: Choices) -> float:
    return float(problem.noise[np.arange(len(chosen)), chosen].sum())


def greedy(problem: Problem) -> Choices:
    """Start from the cheapest choices and repeatedly make the change that saves most error per cost."""
    noise, cost = problem.noise, problem.cost
    chosen: Choices = np.lexsort((noise.T, cost.T), axis=0)[0]
    rows = np.arange(len(chosen))
    left = problem.budget - cost[rows, chosen].sum()
    while True:
        saved = noise[rows, chosen][:, None] - noise
        extra = cost - cost[rows, chosen][:, None]
        possible = (saved > 0) & (extra <= left * (1 + 1e-12))
        if not possible.any():
            return chosen
        with np.errstate(over="ignore"):
            rate = np.where(possible, saved / np.maximum(extra, np.finfo(np.float64).tiny), -np.inf)
        group, choice = np.unravel_index(int(np.argmax(rate)), rate.shape)
        left -= extra[group, choice]
        chosen[group] = choice


def linear_program(problem: Problem) -> Choices | None:
    """Solve it as an integer linear program; None if scipy is missing or finds no solution."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    except ImportError:
        return None
    groups, choices = problem.noise.shape
    rows = np.repeat(np.arange(groups), choices)
    one_each = csr_array((np.ones(groups * choices), (rows, np.arange(groups * choices))))
    scale = problem.noise.max() or 1.0
    result = milp(
        problem.noise.ravel() / scale,
        integrality=np.ones(groups * choices),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(
                problem.cost.reshape(1, -1) / (problem.budget or 1.0), -np.inf, 1 if problem.budget else 0
            ),
        ],
        options={"mip_rel_gap": 0.0, "time_limit": 60.0},
    )
    if result.x is None:
        return None
    chosen: Choices = np.argmax(result.x.reshape(groups, choices), axis=1)
    fits = problem.cost[np.arange(groups), chosen].sum() <= problem.budget * (1 + 1e-9)
    return chosen if fits else None


def table(problem: Problem) -> Choices:
    """Solve it by dynamic programming: group by group, the smallest error for every cost.

    Costs are counted above the cheapest choice of their group. Integers are used as they are; other costs are rounded
    up to steps of the remaining budget, so that the budget always holds.
    """
    extra = problem.cost - problem.cost.min(axis=1, keepdims=True)
    free = problem.budget - problem.cost.min(axis=1).sum()
    steps, width = _in_steps(extra, free)
    best = np.zeros(width + 1)
    taken = np.zeros((len(extra), width + 1), np.int8)
    for group in range(len(extra)):
        options = np.full((extra.shape[1], width + 1), np.inf)
        for choice, step in enumerate(steps[group]):
            if step <= width:
                options[choice, step:] = best[: width + 1 - step] + problem.noise[group, choice]
        taken[group] = np.argmin(options, axis=0)
        best = options.min(axis=0)
    chosen = np.zeros(len(extra), np.int64)
    left = int(np.argmin(best))
    for group in range(len(extra) - 1, -1, -1):
        chosen[group] = taken[group, left]
        left -= steps[group, chosen[group]]
    return chosen


def _in_steps(extra: Floats, free: float) -> tuple[Choices, int]:
    whole = np.rint(extra)
    if np.array_equal(whole, extra) and free <= _TABLE_STEPS:
        return whole.astype(np.int64), int(free)
    if free <= 0:
        return np.where(extra > 0, 1, 0).astype(np.int64), 0
    steps = np.ceil(extra * (_TABLE_STEPS / free) - 1e-9)
    return np.minimum(steps, _TABLE_STEPS + 1).astype(np.int64), _TABLE_STEPS
