"""The live state of a search: what is settled, what is best, and whether to go on."""

import math
from collections.abc import Sequence
from dataclasses import replace

from quantry.autosearch.cost import CostModel
from quantry.autosearch.evaluator import Direction, Score
from quantry.autosearch.found_recipe import found_recipe
from quantry.autosearch.listener import Listener
from quantry.autosearch.options import SearchOptions, tolerance_of
from quantry.autosearch.outcome import Outcome
from quantry.autosearch.output_directory import OutputDirectory, disk_errors
from quantry.autosearch.pareto import pareto_front
from quantry.autosearch.study import Proposal, StudyFile
from quantry.autosearch.time_limit import TimeLimit
from quantry.autosearch.trial import Trial
from quantry.autosearch.written_model import copy_model
from quantry.errors import StageError
from quantry.pipeline import model_metadata
from quantry.recipe import Recipe, to_yaml

_FORESIGHT = 200
"""So many of the next trials are estimated one by one; the others as the mean of those so far."""


class Ledger:
    """Takes trials in the order of their numbers, whatever order they end in, so that workers change nothing.

    Args:
        options: How to search.
        directory: Where files go.
        study: Where outcomes go.
        direction: Which way a score is better.
    """

    def __init__(
        self, options: SearchOptions, directory: OutputDirectory, study: StudyFile, direction: Direction
    ) -> None:
        self.options = options
        self.directory = directory
        self.study = study
        self.direction = direction
        self.reference = study.reference
        self.tolerance = None if self.reference is None else tolerance_of(options.tolerance, self.reference.value)
        self.listeners: list[Listener] = []
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        self.pareto: tuple[Trial, ...] = ()
        self.contents: dict[str, int] = {}
        self.stopped_by: str | None = None
        self.costs = CostModel()
        self.expected: Sequence[Recipe] = ()
        self.restored: frozenset[int] = frozenset()
        self.begun_before = False
        self._on_disk: set[int] = set()
        self._unwritten: Trial | None = None
        self.time = TimeLimit(options.stop.seconds, study.seconds)

    @property
    def seconds(self) -> float:
        """Time of the search so far, its earlier parts included."""
        return self.time.seconds

    def set_reference(self, outcome: Outcome) -> None:
        """Take the float model's score.

        Raises:
            StageError: There is none.
        """
        if outcome.score is None:
            raise StageError(f"the evaluator must be able to judge the float model; it raised {outcome.error}")
        self.reference = Score(outcome.score, outcome.interval)
        self.tolerance = tolerance_of(self.options.tolerance, outcome.score)
        self.study.set_reference(self.reference)

    @property
    def expected_trials(self) -> int | None:
        """How many trials there will be at most; None where there is no end but time."""
        limits = [limit for limit in (self.options.stop.iterations, len(self.expected) or None) if limit is not None]
        return min(limits) if limits else None

    @property
    def seconds_left(self) -> float | None:
        """How long the search will go on at most; None where nothing is known."""
        left = [seconds for seconds in (self.time.left, self.work_left) if seconds is not None]
        return max(0.0, min(left)) if left else None

    @property
    def work_left(self) -> float | None:
        """How long the trials that are expected will take without a limit of time; None where that is not known."""
        total = self.expected_trials
        if total is None or not self.trials:
            return None
        near = self.expected[len(self.trials) : total][:_FORESIGHT]
        mean = sum(trial.seconds for trial in self.trials) / len(self.trials)
        work = self.costs.estimate_all(near) + mean * (total - len(self.trials) - len(near))
        return work / self.options.n_jobs

    def out_of_time(self, upcoming: Recipe | None = None) -> str | None:
        """Return a reason to stop where the time is over, or too short for a trial.

        Args:
            upcoming: The recipe to be tried next; None asks whether the time is over.
        """
        return self.time.refusal(0.0 if upcoming is None else self.cost(upcoming))

    def cost(self, recipe: Recipe) -> float:
        """Return the seconds that a trial is expected to take; 0 before the first is settled."""
        return self.costs.estimate(recipe) if self.trials else 0.0

    def tell(self, line: str) -> None:
        """Tell whoever listens what goes on between two trials."""
        for listener in self.listeners:
            listener.told(self, line)

    @property
    def opening(self) -> str:
        """Whether this search begins or goes on."""
        done = len(self.restored)
        return f"search goes on after {done} finished trials" if self.begun_before else "search begins"

    @property
    def candidates(self) -> tuple[Trial, ...]:
        """Trials within tolerance."""
        return tuple(trial for trial in self.trials if trial.accepted)

    def drop(self, score: float) -> float:
        """Return how much worse than the float model a score is."""
        assert self.reference is not None
        sign = 1.0 if self.direction == "maximize" else -1.0
        return 0.0 if score == self.reference.value else sign * (self.reference.value - score)

    def settle(self, proposal: Proposal, outcome: Outcome) -> Trial:
        """Take the next trial in order.

        Raises:
            StoreError: A file could not be written; what is there stays.
        """
        outcome = self._with_shared_score(outcome)
        self.costs.learn(proposal.configuration.recipe, outcome)
        trial = self._trial(proposal, outcome)
        self.trials.append(trial)
        if trial.model_path is not None:
            self._on_disk.add(trial.number)
        self.study.report(proposal, self._values(trial))
        self._rank(trial)
        if trial.number not in self.restored:
            self.write_best()
        self._keep_or_delete()
        self._write_twin(self.trials[trial.number])
        self.study.add_seconds(self.seconds)
        self.stopped_by = self._stop()
        settled = self.trials[trial.number]
        for listener in self.listeners:
            listener.settled(self, settled)
        return settled

    def _with_shared_score(self, outcome: Outcome) -> Outcome:
        """Give a model that computes the same as an earlier one the score and all objectives of that one."""
        if outcome.content is None or outcome.state == "failed":
            return outcome
        if outcome.same_as is not None and outcome.content not in self.contents:
            # Its first samples were judged, and a later leg of the race failed.
            error = (
                f"it computes the same as trial {outcome.same_as}, which failed: {self.trials[outcome.same_as].error}"
            )
            return replace(outcome, state="failed", error=error, same_as=None, score=None, interval=None, samples=None)
        first = self.contents.setdefault(outcome.content, outcome.number)
        if first == outcome.number:
            return outcome
        earlier = self.trials[first]
        return replace(
            outcome,
            score=earlier.score,
            interval=earlier.interval,
            samples=earlier.samples,
            objectives={name: value for name, value in earlier.objectives.items() if name != "accuracy"},
            state=earlier.state,
            same_as=first,
        )

    def _trial(self, proposal: Proposal, outcome: Outcome) -> Trial:
        drop = None if outcome.score is None else self.drop(outcome.score)
        within = drop is not None and (self.tolerance is None or drop <= self.tolerance)
        path = self.directory.model(proposal.number)
        objectives = {} if outcome.score is None else {"accuracy": outcome.score, **outcome.objectives}
        return Trial(
            number=proposal.number,
            assignment=proposal.configuration.assignment,
            recipe=proposal.configuration.recipe,
            state=outcome.state,
            score=outcome.score,
            interval=outcome.interval,
            drop=drop,
            accepted=within and outcome.state == "complete",
            objectives=objectives,
            error=outcome.error,
            seconds=outcome.seconds,
            computed=outcome.computed,
            reused=outcome.reused,
            samples=outcome.samples,
            same_as=outcome.same_as,
            model_path=path if path.exists() else None,
            space=self.study.spaces[proposal.configuration.space].name,
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
        """Compare by accuracy; with a tolerance and several objectives, by the second among those within it."""
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
        """Write the best model and its recipe, if they are not those on disk.

        Trials that finished before an interruption are settled again without writing, so that the files never go back
        to an earlier best.

        Raises:
            StoreError: They could not be written; those on disk stay.
        """
        trial = self._unwritten
        if trial is None:
            return
        source = self.directory.model(trial.number)
        with disk_errors(self.directory.best_model):
            if source.exists():
                copy_model(source, self.directory.best_model)
            else:
                # The trial ran on another machine; an older model must not stand beside the recipe.
                self.directory.best_model.unlink(missing_ok=True)
        self.directory.write(self.directory.best_recipe, to_yaml(found_recipe(trial.recipe)).encode())
        self._unwritten = None

    def _keep_or_delete(self) -> None:
        """Delete the models of settled trials that the options do not ask for."""
        kept = {trial.number for trial in (*self.pareto, self.best) if trial is not None}
        for number in sorted(self._on_disk - kept):
            trial = self.trials[number]
            if self._is_asked_for(trial):
                continue
            self.directory.delete_model(number)
            self.trials[number] = replace(trial, model_path=None)
            self._on_disk.discard(number)

    def _write_twin(self, trial: Trial) -> None:
        """Write the model of a trial that shares one, where the options ask for it; it has a recipe of its own."""
        if trial.same_as is None or trial.model_path is not None or not self._is_asked_for(trial):
            return
        source, target = self.directory.model(trial.same_as), self.directory.model(trial.number)
        if not source.exists():
            return  # that trial ran on another machine
        with disk_errors(target):
            copy_model(source, target, model_metadata(trial.recipe))
        self._on_disk.add(trial.number)
        self.trials[trial.number] = replace(trial, model_path=target)

    def _is_asked_for(self, trial: Trial) -> bool:
        """Say whether the options ask for a model, whatever others there are."""
        keep = self.options.keep_models
        return keep == "all" or (keep == "accepted" and self.tolerance is not None and trial.accepted)

    def _stop(self) -> str | None:
        stop = self.options.stop
        candidates = self.candidates
        if stop.n_candidates is not None and len(candidates) >= stop.n_candidates:
            return f"{len(candidates)} candidates within tolerance"
        if stop.best_candidates is not None and candidates:
            assert self.best is not None
            since = len(self.trials) - 1 - self.best.number
            if self.best.accepted and since >= stop.best_candidates:
                return f"the best candidate stood for {since} trials"
        if stop.iterations is not None and len(self.trials) >= stop.iterations:
            return "all trials asked for are done"
        return None
