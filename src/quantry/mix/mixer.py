"""From plans with one type everywhere to one that mixes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.data.calibration_data import CalibrationData
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.mix.allocation import Problem, allocate
from quantry.mix.costs import bit_operations, count_costs, fixed_size, quantized_tensors, size_costs
from quantry.mix.groups import Group, find_groups
from quantry.mix.judge import Judge, Score, Verdict
from quantry.mix.latency import LayerTimer
from quantry.mix.merge import merge_plans
from quantry.mix.report import notes_of
from quantry.mix.scheme import Scheme
from quantry.mix.sensitivity import Sensitivity
from quantry.observe import Statistics
from quantry.recipe import (
    BitOperationsBudget,
    LayerCount,
    MixedPrecision,
    ScaleOptions,
    SizeBudget,
    TensorShare,
    WithinDrop,
    WithinError,
)
from quantry.scale import scale

Choices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class Mixer:
    """Everything that a choice of types depends on.

    Attributes:
        model: The float model.
        statistics: What was observed of it.
        plans: The plan, and what it would be with each target everywhere.
        data: Samples on which limits are checked.
        measured: How much each tensor matters, under each plan.
        options: What to reach.
        scaling: How scales are found.
        score: The user's function of the outputs; needed by `WithinDrop`.
    """

    model: FloatModel
    statistics: Statistics
    plans: Sequence[QuantPlan]
    data: CalibrationData
    measured: Sensitivity
    options: MixedPrecision
    scaling: ScaleOptions
    score: Score | None = None

    def plan(self) -> QuantPlan:
        """Return the plan that reaches the goal, with notes on what changed and why."""
        goal = self.options.goal
        verdict: Verdict | None = None
        of_goal: tuple[str, ...] = ()
        if isinstance(goal, LayerCount):
            chosen = self._first(min(goal.count, len(self.groups)))
            if goal.count > len(self.groups):
                can = len(self.groups)
                of_goal = (f"mixed precision: {goal.count} layers were to change, but only {can} can: all do",)
        elif isinstance(goal, WithinError | WithinDrop):
            chosen, verdict = self._within(goal)
        else:
            problem = self._problem()
            chosen = allocate(problem, self.options.allocation)
            if isinstance(goal, TensorShare):
                of_goal = (self._share_note(problem, chosen),)
        notes = (*of_goal, *notes_of(self.groups, self.noise, chosen, self.options, verdict))
        return replace(self._merged(chosen), notes=notes)

    def _share_note(self, problem: Problem, chosen: Choices) -> str:
        finer = int(problem.cost[np.arange(len(chosen)), chosen].sum())
        return (
            f"mixed precision: {finer} of {quantized_tensors(self.plans[0])} quantized activations, weights and biases "
            f"have the finer types, of which the share allows {int(problem.budget)}"
        )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """What may change together."""
        return find_groups(self.model, self.plans, self.options)

    @cached_property
    def noise(self) -> Floats:
        """Error of the results by group and choice, [groups, choices]."""
        rows = [sum(self._noise_of(tensor) for tensor in group.tensors) for group in self.groups]
        return np.array(rows, np.float64)

    def _noise_of(self, tensor: str) -> Floats:
        noise = self.measured.noise[self._row_of[tensor]]
        return np.asarray(noise[:, list(self._results)].mean(axis=-1))

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {tensor: row for row, tensor in enumerate(self.measured.tensors)}

    @cached_property
    def _results(self) -> tuple[int, ...]:
        """Which of the measured results count: those that the wanted output is made of."""
        everything = tuple(range(len(self.measured.outputs)))
        if self.options.output is None:
            return everything
        upstream = _before(self.model, self.options.output)
        return tuple(index for index in everything if self.measured.outputs[index] in upstream) or everything

    def _within(self, goal: WithinError | WithinDrop) -> tuple[Choices, Verdict]:
        """Return the fewest promotions, or the most demotions, with which the limit holds."""
        judge = Judge(self.model, self.statistics, self.data, self.scaling, goal, self.options.output, self.score)
        promotes = self.promotes
        # Between these numbers of changes lies the border: one end is accepted, or the best there is.
        low, high = 0, len(self.groups)
        verdicts: dict[int, Verdict] = {}

        def verdict(count: int) -> Verdict:
            if count not in verdicts:
                verdicts[count] = judge.verdict(self._merged(self._first(count)))
            return verdicts[count]

        if verdict(low).accepted == promotes:  # nothing has to be promoted, or nothing may be demoted
            return self._first(low), verdict(low)
        if verdict(high).accepted != promotes:
            return self._first(high), verdict(high)
        while high - low > 1:
            middle = (low + high) // 2
            if verdict(middle).accepted == promotes:
                high = middle
            else:
                low = middle
        best = high if promotes else low
        return self._first(best), verdict(best)

    @cached_property
    def promotes(self) -> bool:
        """Whether the target is finer than the plan, by the error it leaves."""
        return bool(self.noise[:, 1].sum() < self.noise[:, 0].sum())

    def _first(self, count: int) -> Choices:
        """Return the choices with the given number of changes: those that save most error, or cost least."""
        order = np.argsort(self.noise[:, 1] - self.noise[:, 0], kind="stable")
        chosen = np.zeros(len(self.groups), np.int64)
        chosen[order[:count]] = 1
        return chosen

    def _problem(self) -> Problem:
        goal = self.options.goal
        given = (self.model, self.groups, self.plans)
        if isinstance(goal, TensorShare):
            return Problem(self.noise, count_costs(*given), float(int(goal.share * quantized_tensors(self.plans[0]))))
        if isinstance(goal, SizeBudget):
            fixed = fixed_size(self.model, self.groups, self.plans[0])
            return Problem(self.noise, size_costs(*given), goal.size - fixed)
        if isinstance(goal, BitOperationsBudget):
            cost = bit_operations(*given)
            return Problem(self.noise, cost, goal.share * float(cost.max(axis=1).sum()))
        assert not isinstance(goal, LayerCount | WithinError | WithinDrop)
        schemes = [Scheme(plan, scale(self.model, self.statistics, plan, self.scaling)) for plan in self.plans]
        timer = LayerTimer(self.model, schemes, next(iter(self.data)), goal.runs)
        return Problem(self.noise, timer.costs(self.groups), goal.milliseconds)

    def _merged(self, chosen: Choices) -> QuantPlan:
        choice = {
            tensor: int(index) for group, index in zip(self.groups, chosen, strict=True) for tensor in group.tensors
        }
        return merge_plans(self.model, self.plans, choice)


def _before(model: FloatModel, output: int) -> frozenset[str]:
    """Return the names of all tensors that an output is made of, itself included."""
    found: dict[str, None] = {}
    queue = [model.model.graph.outputs[output]]
    while queue:
        value = queue.pop()
        if value.name and value.name not in found:
            found[value.name] = None
            producer = value.producer()
            queue.extend(entry for entry in (producer.inputs if producer is not None else ()) if entry is not None)
    return frozenset(found)
