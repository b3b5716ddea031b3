"""Search spaces of finetuning parameters, and searches in two stages: calibration, then finetuning."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quantry.autosearch.engine import run_search
from quantry.autosearch.parameter import Parameter
from quantry.autosearch.result import SearchResult
from quantry.autosearch.space import AnySpace, Assignment, Space, as_parameter
from quantry.errors import RecipeError
from quantry.memo import Store
from quantry.recipe import AdaQuant, Brecq, Distill, Recipe, Tqt, TuneOptions
from quantry.recipe.search_options import SearchOptions

# AdaRound is missing: its regularization schedule depends on the total number of iterations, so a run with more
# iterations does not start like one with fewer.
_RESUMABLE = (AdaQuant, Brecq, Tqt, Distill)


@dataclass(frozen=True)
class FinetuneBuild:
    """Builds recipes from iterations and a learning rate.

    Attributes:
        base: A recipe whose last tuning step is varied.
        checkpoint_every: Iterations between checkpoints; None has none.
    """

    base: Recipe
    checkpoint_every: int | None = None

    def __call__(self, assignment: Assignment) -> Recipe:
        """Return the recipe with the last step changed.

        Raises:
            RecipeError: The step has no such field, or the value is out of range.
        """
        *before, last = self.base.tune.steps
        step: Any = dataclasses.replace(last, **dict(assignment))
        tuned = dataclasses.replace(self.base, tune=TuneOptions((*before, step)))
        return tuned if self.checkpoint_every is None else with_checkpoints(tuned, self.checkpoint_every)


def finetune_space(
    base: Recipe,
    iterations: Parameter | Sequence[int],
    learning_rate: Parameter | Sequence[float] | None = None,
    checkpoint_every: int | None = None,
) -> Space:
    """Return the space of recipes that differ in iterations and learning rate of their last tuning step.

    Args:
        base: A recipe with at least one tuning step; all before the last stay as they are and are computed once.
        iterations: Values to try, such as ``IntRange(100, 3000, log=True)``.
        learning_rate: Values to try, such as ``Uniform(1e-6, 1e-3, log=True)``; None keeps the step's own.
        checkpoint_every: Store a checkpoint after every this many iterations, so that a trial with more iterations
            resumes from one with fewer. For AdaQuant, Brecq, Tqt and Distill, not for AdaRound.

    Raises:
        RecipeError: The last step of the recipe does not train, or cannot resume from a checkpoint.

    Example:
        ::

            run_search(model, data, evaluator, finetune_space(base, IntRange(100, 3000), Uniform(1e-6, 1e-3, log=True)),
                       SearchOptions(sampler="tpe", n_trials=20))
    """
    last = base.tune.steps[-1] if base.tune.steps else None
    if not hasattr(last, "iterations"):
        raise RecipeError(f"finetune_space needs a recipe whose last tuning step trains, got {base.tune}")
    if checkpoint_every is not None:
        with_checkpoints(base, checkpoint_every)
    parameters = {"iterations": as_parameter("iterations", iterations)}
    if learning_rate is not None:
        parameters["learning_rate"] = as_parameter("learning_rate", learning_rate)
    return Space(parameters, FinetuneBuild(base, checkpoint_every), name="finetuning")


@dataclass(frozen=True)
class TwoStageResult:
    """The results of both stages.

    Attributes:
        calibration: The first stage.
        finetuning: The second, which starts from the best of the first.
    """

    calibration: SearchResult
    finetuning: SearchResult

    @property
    def best(self) -> SearchResult:
        """The stage with the better model; the first if finetuning did not help."""
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
    """Search all of a calibration space, then finetune the best calibration.

    Each stage has its own folder in the output directory and can be resumed; both share one store.

    Args:
        model: As in `run_search`.
        data: As in `run_search`.
        evaluator: As in `run_search`.
        stages: The space of the first stage, and a function from the best recipe of that to the space of the second,
            such as ``lambda best: finetune_space(with_fields(best, {"tune.steps": (AdaQuant(),)}), [100, 1000])``.
        options: As in `run_search`. The first stage is always a full grid without limits.
        store: As in `run_search`.

    Raises:
        RecipeError: Every configuration of the first stage failed.
    """
    chosen = options or SearchOptions()
    shared = store if store is not None else chosen.output_dir / "store"
    first_options = dataclasses.replace(
        chosen.without_limits(), sampler="grid", output_dir=chosen.output_dir / "calibration"
    )
    first = run_search(model, data, evaluator, stages[0], first_options, shared)
    if first.best is None:
        raise RecipeError(f"every configuration of the first stage failed; {'; '.join(first.notes)}")
    second_options = dataclasses.replace(chosen, output_dir=chosen.output_dir / "finetuning")
    second = run_search(model, data, evaluator, stages[1](first.best.recipe), second_options, shared)
    return TwoStageResult(first, second)


def with_checkpoints(recipe: Recipe, every: int) -> Recipe:
    """Return a recipe whose last tuning step is split into several, so that longer trials resume from shorter ones.

    Each part is a stage of its own, and its result in the store is the checkpoint.

    Args:
        recipe: The recipe.
        every: Iterations per part; the last may have fewer.

    Raises:
        RecipeError: ``every`` is below 1, or the step cannot resume from a checkpoint, as AdaRound's schedule depends
            on the total number of iterations.
    """
    *before, last = recipe.tune.steps or (None,)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1 or not isinstance(last, _RESUMABLE):
        names = ", ".join(kind.__name__ for kind in _RESUMABLE)
        raise RecipeError(
            f"checkpoint_every must be at least 1 and the last step one of {names}, got {every!r} and {last}"
        )
    whole, rest = divmod(last.iterations, every)
    lengths = [every] * whole + ([rest] if rest else [])
    steps = (dataclasses.replace(last, iterations=length) for length in lengths)
    return dataclasses.replace(recipe, tune=TuneOptions((*(step for step in before if step is not None), *steps)))
