"""Chooses the type of each layer so that a goal is reached, and reports which layers changed and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.data.calibration_data import CalibrationData
from quantry.emit import emit
from quantry.errors import RecipeError, UserError
from quantry.evaluate import find_metric
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.mix.allocation import Problem, allocate
from quantry.mix.costs import LayerTimer, bit_operations, count_costs, fixed_size, quantized_tensors, size_costs
from quantry.mix.groups import Group, find_groups, merge_plans
from quantry.mix.sensitivity import Sensitivity
from quantry.notes import Note
from quantry.observe import Statistics
from quantry.recipe import (
    BitOperationsBudget,
    EmitOptions,
    Goal,
    LayerCount,
    LayerTarget,
    MixedPrecision,
    ScaleOptions,
    SizeBudget,
    SizeShare,
    TensorShare,
    VitisDialect,
    VitisQdq,
    WithinDrop,
    WithinError,
)
from quantry.runtime.sessions import SessionModel, run_session, simulation_session
from quantry.scale import scale

Choices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Outputs = list[list[npt.NDArray[Any]]]
Score = Callable[[Sequence[npt.NDArray[Any]]], float]
"""From the outputs of the model, each with all samples along its first axis, to a score; higher is better."""

_SIGNATURE = (
    "score must be a function of a list of arrays, the model's outputs for all calibration samples, one array for each "
    "output with the samples along its first axis, that returns a number"
)

BODIES_KEEP_TYPES = Note.of("mixed precision: layers inside bodies of control flow keep the types of the recipe")
"""A note on models with such bodies."""

# This dialect can express every type; its functions are inlined before the model runs.
_CARRIER = EmitOptions(VitisQdq(VitisDialect.QUARK))


def check_goal(goal: Goal | None, score: Score | None) -> None:
    """Check that a goal and a score belong together.

    Args:
        goal: The goal of mixed precision; None without mixed precision.
        score: The user's function of outputs, if any.

    Raises:
        RecipeError: The metric of the goal is unknown, the goal needs a score and none is given, or the reverse.
    """
    if isinstance(goal, WithinError):
        find_metric(goal.metric, "WithinError.metric")
    if isinstance(goal, WithinDrop) and score is None:
        raise RecipeError(
            "the goal WithinDrop needs a function that scores outputs, got none; pass it to quantize as score, or use "
            "WithinError"
        )
    if score is not None and not isinstance(goal, WithinDrop):
        given = "a recipe without mixed precision" if goal is None else f"the goal {type(goal).__name__}"
        raise RecipeError(f"score needs mixed precision with the goal WithinDrop, got {given}")


@dataclass(frozen=True)
class GoalResult:
    """The value that a goal limits, for one plan.

    Attributes:
        value: The metric, or the drop of the score.
        accepted: Whether it is within the limit.
    """

    value: float
    accepted: bool


@dataclass(eq=False)
class GoalEvaluator:
    """Evaluates plans against one goal.

    Attributes:
        model: The float model.
        statistics: Observed statistics of its tensors.
        data: Samples to run on.
        scaling: How scales are computed.
        goal: The limit.
        output: Index of the output that counts; None counts all.
        score: The user's function; needed by `WithinDrop`.
    """

    model: FloatModel
    statistics: Statistics
    data: CalibrationData
    scaling: ScaleOptions
    goal: WithinError | WithinDrop
    output: int | None = None
    score: Score | None = None

    def evaluate(self, plan: QuantPlan) -> GoalResult:
        """Run the model quantized by a plan and compare it with the goal.

        Raises:
            RecipeError: The goal needs a score and none is given.
        """
        params = scale(self.model, self.statistics, plan, self.scaling)
        quantized = self._outputs(emit(self.model, plan, params, _CARRIER, {}).model)
        if isinstance(self.goal, WithinDrop):
            drop = self._reference_score - self._scored(quantized)
            return GoalResult(drop, drop <= self.goal.limit)
        metric = find_metric(self.goal.metric)
        scores = [
            metric.score(exact, found)
            for reference, result in zip(self._reference, quantized, strict=True)
            for exact, found in zip(reference, result, strict=True)
        ]
        value = float(np.mean(scores))
        better = value >= self.goal.limit if metric.higher_is_better else value <= self.goal.limit
        return GoalResult(value, better)

    @cached_property
    def _reference(self) -> Outputs:
        return self._outputs(self.model.model)

    @cached_property
    def _reference_score(self) -> float:
        return self._scored(self._reference)

    def _scored(self, outputs: Outputs) -> float:
        check_goal(self.goal, self.score)
        assert self.score is not None
        joined = [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
        try:
            return float(self.score(joined))
        except UserError:
            raise
        except Exception as error:
            raise RecipeError(f"{_SIGNATURE}, got {type(error).__name__}: {error}; in quantize") from error

    def _outputs(self, model: SessionModel) -> Outputs:
        session = simulation_session(model)
        results = (list(run_session(session, sample).values()) for sample in self.data)
        return [outputs if self.output is None else [outputs[self.output]] for outputs in results]


# A note lists at most this many layers.
_NAMED = 12


def notes_of(
    groups: Sequence[Group],
    noise: npt.NDArray[np.float64],
    chosen: npt.NDArray[np.int64],
    options: MixedPrecision,
    result: GoalResult | None,
) -> tuple[Note, ...]:
    """Return notes on a mixture for the user.

    Args:
        groups: The groups that may change.
        noise: Error by group and choice.
        chosen: The choices.
        options: Goal and targets.
        result: The value that the goal limits, if it limits one.
    """
    what = "tensors" if options.per_tensor else "layers"
    rows = np.arange(len(groups))
    total, left = float(noise[:, 0].sum()), float(noise[rows, chosen].sum())
    message = "mixed precision: {count} of {groups} {what} that may change have {types}"
    error = "; the error that {what} cause goes from {before:.3g} to {after:.3g} of the outputs' power"
    notes = [
        Note.of(
            message if index > 1 else message + error,
            count=int((chosen == index).sum()),
            groups=len(groups),
            what=what,
            types=_text(target),
            before=total,
            after=left,
        )
        for index, target in enumerate(options.targets, start=1)
    ]
    if result is not None:
        notes.insert(0 if not result.accepted else len(notes), _result_note(result, options, what))
    changed = [index for index in np.argsort(-np.abs(noise[rows, chosen] - noise[:, 0])) if chosen[index]]
    if changed:
        named = [
            f"{groups[index].name} ({noise[index, 0]:.2g} to {noise[index, chosen[index]]:.2g})" for index in changed
        ]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        message = "mixed precision: error of the {what} that changed: {errors}"
        notes.append(Note.of(message, what=what, errors=", ".join(named[:_NAMED]) + more))
    return tuple(notes)


def _result_note(result: GoalResult, options: MixedPrecision, what: str) -> Note:
    limit = options.goal.limit if hasattr(options.goal, "limit") else float("nan")
    name = options.goal.metric if isinstance(options.goal, WithinError) else "drop of the score"
    if result.accepted:
        message = "mixed precision: {metric} {value:.6g}, limit {limit:.6g}"
        return Note.of(message, metric=name, value=result.value, limit=limit)
    message = (
        "mixed precision misses its goal: {metric} is {value:.6g}, limit {limit:.6g}, with all {what} in the finer "
        "types; use even finer types, or another limit"
    )
    return Note.of(message, metric=name, value=result.value, limit=limit, what=what)


def _text(target: LayerTarget) -> str:
    parts = (
        f"{target.activation.dtype.value} activations" if target.activation is not None else "",
        f"{target.weight.dtype.value} weights" if target.weight is not None else "",
    )
    return " and ".join(part for part in parts if part)


@dataclass(eq=False)
class Mixer:
    """Chooses the type of each group.

    Attributes:
        model: The float model.
        statistics: Observed statistics of its tensors.
        plans: The plan without mixing, then one plan per target.
        data: Samples on which limits are checked.
        measured: Sensitivity of each tensor under each plan.
        options: Goal, targets and layers.
        scaling: How scales are computed.
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
        result: GoalResult | None = None
        of_goal: tuple[Note, ...] = ()
        if isinstance(goal, LayerCount):
            chosen = self._first(min(goal.count, len(self.groups)))
            if goal.count > len(self.groups):
                message = "mixed precision: {count} layers were requested, but only {layers} can change; all of them do"
                of_goal = (Note.of(message, count=goal.count, layers=len(self.groups)),)
        elif isinstance(goal, WithinError | WithinDrop):
            chosen, result = self._within(goal)
        else:
            problem = self._problem()
            chosen = allocate(problem, self.options.allocation)
            if isinstance(goal, TensorShare):
                of_goal = (self._share_note(problem, chosen),)
        if self.plans[0].inside:
            of_goal = (*of_goal, BODIES_KEEP_TYPES)
        notes = (*of_goal, *notes_of(self.groups, self.noise, chosen, self.options, result))
        return replace(self._merged(chosen), notes=notes)

    def _share_note(self, problem: Problem, chosen: Choices) -> Note:
        return Note.of(
            "mixed precision: {count} of {tensors} quantized activations, weights and biases have the finer types; the "
            "share allows {limit}",
            count=int(problem.cost[np.arange(len(chosen)), chosen].sum()),
            tensors=quantized_tensors(self.plans[0]),
            limit=int(problem.budget),
        )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups that may change."""
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
        """Indices of the measured results that count: those that the chosen output depends on."""
        everything = tuple(range(len(self.measured.outputs)))
        if self.options.output is None:
            return everything
        upstream = _before(self.model, self.options.output)
        return tuple(index for index in everything if self.measured.outputs[index] in upstream) or everything

    def _within(self, goal: WithinError | WithinDrop) -> tuple[Choices, GoalResult]:
        """Return the fewest promotions, or the most demotions, with which the limit holds."""
        evaluator = GoalEvaluator(
            self.model, self.statistics, self.data, self.scaling, goal, self.options.output, self.score
        )
        promotes = self.promotes
        # Bisection: the limit is crossed between these numbers of changes.
        low, high = 0, len(self.groups)
        results: dict[int, GoalResult] = {}

        def result(count: int) -> GoalResult:
            if count not in results:
                results[count] = evaluator.evaluate(self._merged(self._first(count)))
            return results[count]

        if result(low).accepted == promotes:  # no promotion is needed, or no demotion is allowed
            return self._first(low), result(low)
        if result(high).accepted != promotes:
            return self._first(high), result(high)
        while high - low > 1:
            middle = (low + high) // 2
            if result(middle).accepted == promotes:
                high = middle
            else:
                low = middle
        best = high if promotes else low
        return self._first(best), result(best)

    @cached_property
    def promotes(self) -> bool:
        """Whether the target leaves less error than the plan, so that layers are promoted to it."""
        return bool(self.noise[:, 1].sum() < self.noise[:, 0].sum())

    def _first(self, count: int) -> Choices:
        """Return the choices with a number of changes: those that save most error, or add least."""
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
        if isinstance(goal, SizeShare):
            costs = size_costs(*given)
            least, most = float(costs.min(axis=1).sum()), float(costs.max(axis=1).sum())
            return Problem(self.noise, costs, least + goal.share * (most - least))
        if isinstance(goal, BitOperationsBudget):
            cost = bit_operations(*given)
            return Problem(self.noise, cost, goal.share * float(cost.max(axis=1).sum()))
        assert not isinstance(goal, LayerCount | WithinError | WithinDrop)
        views = [QuantizedView(plan, scale(self.model, self.statistics, plan, self.scaling)) for plan in self.plans]
        timer = LayerTimer(self.model, views, next(iter(self.data)), goal.runs)
        return Problem(self.noise, timer.costs(self.groups), goal.milliseconds)

    def _merged(self, chosen: Choices) -> QuantPlan:
        choice = {
            tensor: int(index) for group, index in zip(self.groups, chosen, strict=True) for tensor in group.tensors
        }
        return merge_plans(self.model, self.plans, choice)


def _before(model: FloatModel, output: int) -> frozenset[str]:
    """Return the names of all tensors that an output depends on, itself included."""
    found: dict[str, None] = {}
    queue = [model.model.graph.outputs[output]]
    while queue:
        value = queue.pop()
        if value.name and value.name not in found:
            found[value.name] = None
            producer = value.producer()
            queue.extend(entry for entry in (producer.inputs if producer is not None else ()) if entry is not None)
    return frozenset(found)
