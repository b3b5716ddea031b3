"""Says whether a plan is good enough, by running the model it gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.data.calibration_data import CalibrationData
from quantry.emit import emit
from quantry.errors import RecipeError, UserError
from quantry.evaluate import find_metric
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.observe import Statistics
from quantry.recipe import EmitOptions, Goal, ScaleOptions, VitisDialect, VitisQdq, WithinDrop, WithinError
from quantry.runtime.sessions import SessionModel, run_session, simulation_session
from quantry.scale import scale

Outputs = list[list[npt.NDArray[Any]]]
Score = Callable[[Sequence[npt.NDArray[Any]]], float]
"""From the outputs of the model, each with the results of all samples along its first axis, to a number that is larger
where they are better."""

_SIGNATURE = (
    "score must be a function of a list of arrays, the model's outputs for all calibration samples, one array for each "
    "output with the samples along its first axis, that returns a number"
)

# A dialect that carries every type; the functions in it are inlined before anything runs.
_CARRIER = EmitOptions(VitisQdq(VitisDialect.QUARK))


def check_goal(goal: Goal | None, score: Score | None) -> None:
    """Refuse what a goal cannot be judged by.

    Args:
        goal: The goal of mixed precision; None where there is none.
        score: The user's function of outputs, if any.

    Raises:
        RecipeError: The goal's metric is unknown, or it has no score and needs one, or the reverse.
    """
    if isinstance(goal, WithinError):
        find_metric(goal.metric, "WithinError.metric")
    if isinstance(goal, WithinDrop) and score is None:
        raise RecipeError(
            "the goal WithinDrop needs a function that scores outputs, got none; give it to quantize as score, or "
            "use WithinError"
        )
    if score is not None and not isinstance(goal, WithinDrop):
        given = "a recipe without mixed precision" if goal is None else f"the goal {type(goal).__name__}"
        raise RecipeError(f"score goes with mixed precision of the goal WithinDrop, which asks for it, got {given}")


@dataclass(frozen=True)
class Verdict:
    """What a plan is worth.

    Attributes:
        value: The metric, or the drop of the score.
        accepted: Whether it is within the limit.
    """

    value: float
    accepted: bool


@dataclass(eq=False)
class Judge:
    """Judges plans against one goal.

    Attributes:
        model: The float model.
        statistics: What was observed of it.
        data: Samples to run on.
        scaling: How scales are found.
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

    def verdict(self, plan: QuantPlan) -> Verdict:
        """Run the model that a plan gives, and compare.

        Raises:
            RecipeError: The goal needs a score and there is none.
        """
        params = scale(self.model, self.statistics, plan, self.scaling)
        quantized = self._outputs(emit(self.model, plan, params, _CARRIER, {}).model)
        if isinstance(self.goal, WithinDrop):
            drop = self._reference_score - self._scored(quantized)
            return Verdict(drop, drop <= self.goal.limit)
        metric = find_metric(self.goal.metric)
        scores = [
            metric.score(exact, found)
            for reference, result in zip(self._reference, quantized, strict=True)
            for exact, found in zip(reference, result, strict=True)
        ]
        value = float(np.mean(scores))
        better = value >= self.goal.limit if metric.higher_is_better else value <= self.goal.limit
        return Verdict(value, better)

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
