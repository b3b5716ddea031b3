"""Spaces of finetuning parameters, and searches in two stages."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quantry.autosearch.options import SearchOptions, StopConditions
from quantry.autosearch.parameter import Choice, IntRange, Parameter, Uniform
from quantry.autosearch.result import SearchResult
from quantry.autosearch.run import run_search
from quantry.autosearch.space import AnySpace, Assignment, Space
from quantry.errors import RecipeError
from quantry.memo import Store
from quantry.recipe import AdaQuant, Brecq, Distill, Recipe, Tqt, TuneOptions

_CONTINUABLE = (AdaQuant, Brecq, Tqt, Distill)


@dataclass(frozen=True)
class FinetuneBuild:
    """Makes a recipe of iterations and a learning rate.

    Attributes:
        base: A recipe whose last tuning step is varied.
        leg: Iterations of one leg; None tunes in one go.
    """

    base: Recipe
    leg: int | None = None

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe with the last step changed.

        Raises:
            RecipeError: The step has no such field, or the value is out of its range.
        """
        *before, last = self.base.tune.steps
        step: Any = dataclasses.replace(last, **dict(assignment))
        tuned = dataclasses.replace(self.base, tune=TuneOptions((*before, step)))
        return tuned if self.leg is None else in_legs(tuned, self.leg)


def finetune_space(
    base: Recipe,
    iterations: Parameter | Sequence[int],
    learning_rate: Parameter | Sequence[float] | None = None,
    leg: int | None = None,
) -> Space:
    """Return the space of recipes that differ in iterations and learning rate of their last tuning step.

    Args:
        base: A recipe with at least one tuning step; all before the last stay as they are, and so are computed once.
        iterations: What to try, such as ``IntRange(100, 3000, log=True)``.
        learning_rate: What to try, such as ``Uniform(1e-6, 1e-3, log=True)``; None keeps the step's own.
        leg: Tune in legs of so many iterations, each a step of its own, so that a trial with more iterations goes on
            from one with fewer. For AdaQuant, Brecq, Tqt and Distill; AdaRound's schedule needs to know its end.

    Raises:
        RecipeError: The recipe has no step that trains, or one that cannot be continued in legs.

    Example:
        ::

            run_search(model, data, evaluator, finetune_space(base, IntRange(100, 3000), Uniform(1e-6, 1e-3, log=True)),
                       SearchOptions(sampler="tpe", stop=StopConditions(iterations=20)))
    """
    last = base.tune.steps[-1] if base.tune.steps else None
    if not hasattr(last, "iterations"):
        raise RecipeError(f"finetune_space needs a recipe whose last tuning step trains, got {base.tune}")
    if leg is not None:
        in_legs(base, leg)
    parameters = {"iterations": _parameter(iterations)}
    if learning_rate is not None:
        parameters["learning_rate"] = _parameter(learning_rate)
    return Space(parameters, FinetuneBuild(base, leg), name="finetuning")


@dataclass(frozen=True)
class TwoStageResult:
    """What the two stages found.

    Attributes:
        calibration: The first stage.
        finetuning: The second, which starts from the best of the first.
    """

    calibration: SearchResult
    finetuning: SearchResult

    @property
    def best(self) -> SearchResult:
        """The stage with the better model; the first where tuning did not help."""
        first, second = self.calibration.best, self.finetuning.best
        if second is None or second.drop is None:
            return self.calibration
        if first is None or first.drop is None or second.drop < first.drop:
            return self.finetuning
        return self.calibration


def run_two_stage(
    model: Any,
    data: Any,
    evaluator: Any,
    stages: tuple[AnySpace, Callable[[Recipe], AnySpace]],
    options: SearchOptions | None = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> TwoStageResult:
    """Search calibration in full, then finetuning of the best calibration.

    Each stage has a folder of its own in the output directory and can be interrupted; both share one store.

    Args:
        model: As in `run_search`.
        data: As in `run_search`.
        evaluator: As in `run_search`.
        stages: The space of the first stage, and a function from the best recipe of that to the space of the second,
            such as ``lambda best: finetune_space(with_fields(best, {"tune.steps": (AdaQuant(),)}), [100, 1000])``.
        options: As in `run_search`. The first stage is a grid without stop conditions.
        store: As in `run_search`.

    Raises:
        RecipeError: No configuration of the first stage works.
    """
    chosen = options or SearchOptions()
    shared = store if store is not None else chosen.output_dir / "store"
    first_options = dataclasses.replace(
        chosen, sampler="grid", stop=StopConditions(), output_dir=chosen.output_dir / "calibration"
    )
    first = run_search(model, data, evaluator, stages[0], first_options, shared)
    if first.best is None:
        raise RecipeError(f"the first of two stages found no configuration that works; {'; '.join(first.notes)}")
    second_options = dataclasses.replace(chosen, output_dir=chosen.output_dir / "finetuning")
    second = run_search(model, data, evaluator, stages[1](first.best.recipe), second_options, shared)
    return TwoStageResult(first, second)


def in_legs(recipe: Recipe, leg: int) -> Recipe:
    """Return a recipe whose last tuning step is cut into legs, so that a longer one goes on from a shorter one.

    Args:
        recipe: The recipe.
        leg: Iterations of one leg; the last may have fewer.

    Raises:
        RecipeError: The leg is below 1, or the step is none that can be continued: AdaRound's schedule needs to know
            its end.
    """
    *before, last = recipe.tune.steps or (None,)
    if isinstance(leg, bool) or not isinstance(leg, int) or leg < 1 or not isinstance(last, _CONTINUABLE):
        names = ", ".join(kind.__name__ for kind in _CONTINUABLE)
        raise RecipeError(f"leg must be at least 1 and the last step one of {names}, got {leg!r} and {last}")
    whole, rest = divmod(last.iterations, leg)
    lengths = [leg] * whole + ([rest] if rest else [])
    steps = (dataclasses.replace(last, iterations=length) for length in lengths)
    return dataclasses.replace(recipe, tune=TuneOptions((*(step for step in before if step is not None), *steps)))


def _parameter(given: Parameter | Sequence[Any]) -> Parameter:
    return given if isinstance(given, Choice | Uniform | IntRange) else Choice(tuple(given))
