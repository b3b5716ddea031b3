"""`SearchState`: finished trials, the best of them, and whether to stop."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from quantry.autosearch.cost import CostModel
from quantry.autosearch.evaluator import Direction, Score
from quantry.autosearch.forecast import Forecast
from quantry.autosearch.output_directory import OutputDirectory, copy_model, disk_errors
from quantry.autosearch.stop import Stop, StopKind
from quantry.autosearch.study import SearchStudy
from quantry.autosearch.time_limit import TimeLimit
from quantry.autosearch.trial import Trial, found_recipe, pareto_front
from quantry.errors import StageError
from quantry.pipeline import model_metadata
from quantry.recipe import Recipe, to_yaml
from quantry.recipe.search_options import SearchOptions, accepted_drop

if TYPE_CHECKING:
    from quantry.autosearch.output import SearchCallback

_ESTIMATED_ONE_BY_ONE = 200
"""How many of the next trials are estimated individually; the mean time so far stands for the rest."""


class SearchState:
    """Records finished trials in the order of their numbers, so that results do not depend on the number of workers.

    Args:
        options: How to search.
        directory: The output directory.
        study: Stores the trials.
        direction: Whether the score is maximized or minimized.

    Attributes:
        reference: The float model's score; None until it is evaluated.
        tolerance: The largest accepted drop, in the unit of the score; None accepts every complete trial.
        trials: Recorded trials, by number.
        best: The best complete trial.
        pareto: The Pareto front of the objectives.
        first_with_content: Content digests of models to the first trial that has the model.
        stopped_by: Why the search stopped; None while it runs.
        costs: Estimates the time of trials.
        expected: Recipes that will be tried, in order, as far as that is known.
        upcoming: Returns what is known to be tried next, at most a given number of recipes, and how many of them are
            proposed; None if `expected` has all.
        finished: Trials with a result that are recorded when all before them are, by number.
        always: Recipes that are tried whatever the limits; see `Space.always`.
        restored: Numbers of the trials that finished before an interruption.
        resumed: Whether this search continues an earlier one.
        time: The time limit.
        callbacks: Called when trials finish.
        model_name: The float model's file name, for reports.
        metric: Name of the score, for reports.
        recorded_at: Seconds since the start at which trials were recorded, by number.
        reasons: Why the best trial is the best, once the search has ended.
    """

    def __init__(
        self, options: SearchOptions, directory: OutputDirectory, study: SearchStudy, direction: Direction
    ) -> None:
        self.options = options
        self.directory = directory
        self.study = study
        self.direction = direction
        self.reference = study.reference
        self.tolerance = None if self.reference is None else accepted_drop(options.tolerance, self.reference.value)
        self.callbacks: list[SearchCallback] = []
        self.model_name = ""
        self.metric = "score"
        self.recorded_at: dict[int, float] = {}
        self.reasons: tuple[str, ...] = ()
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        self.pareto: tuple[Trial, ...] = ()
        self.first_with_content: dict[str, int] = {}
        self.stopped_by: Stop | None = None
        self.costs = CostModel()
        self.expected: Sequence[Recipe] = ()
        self.always: frozenset[Recipe] = frozenset()
        self.upcoming: Callable[[int], tuple[Sequence[Recipe], int]] | None = None
        self.restored: frozenset[int] = frozenset()
        self.resumed = False
        self.finished: dict[int, Trial] = {}
        self._forecast: tuple[int, Forecast | None] = (0, None)
        self._on_disk: set[int] = set()
        self._unwritten: Trial | None = None
        self.time = TimeLimit(options.seconds, study.seconds)

    @property
    def seconds(self) -> float:
        """Duration of the search so far, including the time before an interruption."""
        return self.time.seconds

    def set_reference(self, trial: Trial) -> None:
        """Set the float model's score.

        Raises:
            StageError: The float model could not be evaluated.
        """
        if trial.score is None:
            raise StageError(f"the evaluator must be able to score the float model; it raised {trial.error}")
        self.reference = Score(trial.score, trial.interval, named=trial.scores)
        self.tolerance = accepted_drop(self.options.tolerance, trial.score)
        self.study.set_reference(self.reference)

    def try_always(self, recipes: frozenset[Recipe]) -> None:
        """Set the recipes that are tried whatever the limits: the number of trials rises to theirs, and time waits."""
        self.always = recipes
        if self.options.n_trials is not None:
            self.options = replace(self.options, n_trials=max(self.options.n_trials, len(recipes)))
        self._wait_for_always()

    def _wait_for_always(self) -> None:
        self.time.waived = not self.always <= {trial.recipe for trial in self.trials}

    @property
    def expected_trials(self) -> int | None:
        """Maximum number of trials; None if only time limits it."""
        limits = [limit for limit in (self.options.n_trials, len(self.expected) or None) if limit is not None]
        return min(limits) if limits else None

    @property
    def seconds_left(self) -> float | None:
        """Expected time left; None if unknown."""
        left, forecast, work = self.time.left, self._current_forecast(), self.work_left
        if left is None or forecast is None:
            return left if work is None else work
        left = max(0.0, forecast.until_refused(self.seconds, left))
        return left if work is None else min(left, work)

    @property
    def work_left(self) -> float | None:
        """Expected seconds of the remaining trials, ignoring the time limit; None if unknown."""
        forecast = self._current_forecast()
        return None if forecast is None else forecast.work_left(self.seconds)

    def _current_forecast(self) -> Forecast | None:
        """Return the forecast as of the latest recorded trial; None before the first."""
        if self._forecast[0] != len(self.trials):
            self._forecast = len(self.trials), self._made_forecast()
        return self._forecast[1]

    def _made_forecast(self) -> Forecast:
        total, done = self.expected_trials, len(self.trials)
        left = None if total is None else max(total - done - len(self.finished), 0)
        count = _ESTIMATED_ONE_BY_ONE if left is None else min(left, _ESTIMATED_ONE_BY_ONE)
        near: Sequence[Recipe]
        if self.upcoming is None:
            listed = enumerate(self.expected[done : done + count + len(self.finished)], done)
            near, decided = [recipe for number, recipe in listed if number not in self.finished], count
        else:
            near, decided = self.upcoming(count)
        estimates = self.costs.estimates(near)
        # The first trial also computes what all others share.
        usual = [*(trial.seconds for trial in self.trials[1:]), *estimates] or [self.trials[0].seconds]
        others = None if left is None else fmean(usual) * (left - len(estimates))
        return Forecast(self.seconds, self.options.n_jobs, estimates, decided, others)

    def out_of_time(self, upcoming: Recipe | None = None) -> Stop | None:
        """Return the reason to stop if the time is over, or too short for a trial.

        Args:
            upcoming: The recipe to be tried next; None asks only whether the time is over.
        """
        return self.time.refusal(0.0 if upcoming is None else self.estimated_seconds(upcoming))

    def estimated_seconds(self, recipe: Recipe) -> float:
        """Return the expected seconds of a trial; 0 before the first trial is recorded."""
        return self.costs.estimate(recipe) if self.trials else 0.0

    def message(self, line: str) -> None:
        """Report progress between two finished trials."""
        for callback in self.callbacks:
            callback.on_message(self, line)

    @property
    def headline(self) -> str:
        """First line of the log: whether the search starts or resumes."""
        done = len(self.restored)
        return f"search resumes after {done} finished trials" if self.resumed else "search starts"

    @property
    def candidates(self) -> tuple[Trial, ...]:
        """Trials within tolerance."""
        return tuple(trial for trial in self.trials if trial.accepted)

    def drop(self, score: float) -> float:
        """Return how much worse than the float model a score is."""
        assert self.reference is not None
        sign = 1.0 if self.direction == "maximize" else -1.0
        # Equal infinities would give NaN.
        return 0.0 if score == self.reference.value else sign * (self.reference.value - score)

    def record(self, trial: Trial) -> Trial:
        """Record the next finished trial, in the order of numbers.

        Raises:
            StoreError: A file could not be written; existing files stay.
        """
        trial = self._with_shared_score(trial)
        self.costs.learn(trial, None if trial.same_as is None else self.trials[trial.same_as])
        trial = self._compared(trial)
        self.trials.append(trial)
        if self.time.waived:
            self._wait_for_always()
        if trial.model_path is not None:
            self._on_disk.add(trial.number)
        self.study.finish(trial, self._values(trial))
        self._rank(trial)
        if trial.number not in self.restored:
            self.write_best()
        self._delete_models()
        self._write_shared_model(self.trials[trial.number])
        self.study.set_seconds(self.seconds)
        self.stopped_by = self._stop_reason()
        if trial.number not in self.restored:
            self.recorded_at[trial.number] = self.seconds
        recorded = self.trials[trial.number]
        for callback in self.callbacks:
            callback.on_trial(self, recorded)
        return recorded

    def _with_shared_score(self, trial: Trial) -> Trial:
        """Give a trial whose model equals an earlier trial's model the score and objectives of that trial."""
        if trial.content is None or trial.state == "failed":
            return trial
        if trial.same_as is not None and trial.content not in self.first_with_content:
            # The earlier trial got through its first samples, but failed in a later rung of the race.
            error = self.trials[trial.same_as].error
            return trial.failed(f"same model as trial {trial.same_as}, which failed: {error}", same_as=None)
        first = self.first_with_content.setdefault(trial.content, trial.number)
        if first == trial.number:
            return trial
        earlier = self.trials[first]
        return replace(
            trial,
            score=earlier.score,
            interval=earlier.interval,
            samples=earlier.samples,
            objectives=earlier.objectives,
            scores=earlier.scores,
            state=earlier.state,
            same_as=first,
        )

    def _compared(self, trial: Trial) -> Trial:
        """Fill in the comparison with the float model, all objectives, and the model's file."""
        drop = None if trial.score is None else self.drop(trial.score)
        within = drop is not None and (self.tolerance is None or drop <= self.tolerance)
        path = self.directory.model(trial.number)
        others = {name: value for name, value in trial.objectives.items() if name != "accuracy"}
        return replace(
            trial,
            drop=drop,
            accepted=within and trial.state == "complete",
            objectives={} if trial.score is None else {"accuracy": trial.score, **others},
            model_path=path if path.exists() else None,
        )

    def _values(self, trial: Trial) -> list[float] | None:
        values = [trial.objectives.get(name, math.nan) for name in self.options.objectives]
        return None if trial.state == "failed" or any(math.isnan(value) for value in values) else values

    def _rank(self, trial: Trial) -> None:
        if trial.state != "complete":
            return
        if trial.same_as is None:
            self.pareto = pareto_front([*self.pareto, trial], self.options.objectives, self.direction)
        if self.best is None or self._is_better(trial, self.best):
            self.best = self._unwritten = trial

    def _is_better(self, trial: Trial, other: Trial) -> bool:
        """Compare by accuracy; with a tolerance and several objectives, by the second one among accepted trials."""
        if len(self.options.objectives) > 1 and self.tolerance is not None:
            if trial.accepted != other.accepted:
                return trial.accepted
            if trial.accepted:
                second = self.options.objectives[1]
                return trial.objectives[second] < other.objectives[second]
        assert trial.drop is not None
        assert other.drop is not None
        return trial.drop < other.drop

    def write_best(self) -> None:
        """Write the best model and its recipe, unless they are already on disk.

        Trials that finished before an interruption are recorded again without writing, so that the files never go back
        to an earlier best.

        Raises:
            StoreError: They could not be written; the existing files stay.
        """
        trial = self._unwritten
        if trial is None:
            return
        source = self.directory.model(trial.number)
        with disk_errors(self.directory.best_model):
            if source.exists():
                copy_model(source, self.directory.best_model)
            else:
                # The trial ran on another machine. An older model must not stay next to the new recipe; the end of the
                # search builds the right one.
                self.directory.best_model.unlink(missing_ok=True)
        self.directory.write(self.directory.best_recipe, to_yaml(found_recipe(trial.recipe)).encode())
        self._unwritten = None

    def prefer(self, trial: Trial) -> None:
        """Make another trial the best one, because of what the search does not measure in every trial.

        Args:
            trial: A complete trial.
        """
        self.best = self._unwritten = trial
        self.write_best()

    def _delete_models(self) -> None:
        """Delete models of recorded trials that `SearchOptions.keep_models` does not keep."""
        kept = {trial.number for trial in (*self.pareto, self.best) if trial is not None}
        for number in sorted(self._on_disk - kept):
            trial = self.trials[number]
            if self._keeps(trial):
                continue
            self.directory.delete_model(number)
            self.trials[number] = replace(trial, model_path=None)
            self._on_disk.discard(number)

    def _write_shared_model(self, trial: Trial) -> None:
        """Write the model of a trial that equals an earlier one, if it is to be kept; only the metadata differs."""
        if trial.same_as is None or trial.model_path is not None or not self._keeps(trial):
            return
        source, target = self.directory.model(trial.same_as), self.directory.model(trial.number)
        if not source.exists():
            return  # that trial ran on another machine
        with disk_errors(target):
            copy_model(source, target, model_metadata(trial.recipe))
        self._on_disk.add(trial.number)
        self.trials[trial.number] = replace(trial, model_path=target)

    def _keeps(self, trial: Trial) -> bool:
        """Return whether the options keep a model that is neither the best nor on the Pareto front."""
        keep = self.options.keep_models
        return keep == "all" or (keep == "accepted" and self.tolerance is not None and trial.accepted)

    def _stop_reason(self) -> Stop | None:
        options = self.options
        candidates = self.candidates
        if self.time.waived:
            return None
        if options.n_candidates is not None and len(candidates) >= options.n_candidates:
            return Stop(StopKind.CANDIDATES, len(candidates))
        if options.patience is not None and candidates:
            assert self.best is not None
            since = len(self.trials) - 1 - self.best.number
            if self.best.accepted and since >= options.patience:
                return Stop(StopKind.PATIENCE, since)
        if options.n_trials is not None and len(self.trials) >= options.n_trials:
            return Stop(StopKind.TRIALS, options.n_trials)
        return None
