"""Schedules trials on workers, retries those whose worker died, and runs the main loop of a search."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from quantry.autosearch.proposer import Proposer
from quantry.autosearch.state import SearchState
from quantry.autosearch.stop import ALL_TRIED, Stop, StopKind
from quantry.autosearch.time_limit import OutOfTime
from quantry.autosearch.trial import FLOAT_MODEL, Trial
from quantry.autosearch.trial_runner import KnownModels
from quantry.autosearch.workers import Workers
from quantry.recipe import Recipe
from quantry.tune import on_this_machine

MAX_ATTEMPTS = 2
"""How often a trial is started before it counts as failed because its worker process died."""

MAX_INTERRUPTIONS = 5
"""How often the process of a search may end during the same trial before that trial counts as failed.

A trial that crashes this process looks the same as a user who kills it repeatedly, so the limit is higher than
`MAX_ATTEMPTS`.
"""


"""Why a search stops that has nothing left to do."""


@dataclass(frozen=True)
class _Submitted:
    """A trial with what a worker needs to run it.

    Attributes:
        trial: The trial.
        samples: Evaluate on this many samples; None on all.
        unclaimed: See `KnownModels.unclaimed`.
    """

    trial: Trial
    samples: int | None
    unclaimed: str | None = None


@dataclass(frozen=True)
class _Deferred:
    """A trial that waits because another worker was evaluating the same model.

    Attributes:
        submitted: What was submitted.
        trial: The trial as its worker returned it, with the model's content.
        suspects: Numbers of the trials one of which was evaluating the model, unless it had just finished.
    """

    submitted: _Submitted
    trial: Trial
    suspects: frozenset[int]


class Scheduler:
    """Assigns trials to workers.

    The float model is evaluated first; with several workers, at the same time as the first trials. Equal models are
    evaluated once: a worker that quantizes to a model that another one is evaluating returns its trial as waiting, and
    the trial is resolved here when the other finishes.

    Args:
        state: The state of the search.
        workers: The workers.
    """

    def __init__(self, state: SearchState, workers: Workers) -> None:
        self._state = state
        self._workers = workers
        self._waiting: deque[_Submitted] = deque()
        self._running: dict[int, _Submitted] = {}
        self._ended: deque[Trial] = deque()
        self._deferred: list[_Deferred] = []
        self._deaths: Counter[int] = Counter()
        # Trials as they were when they were deferred; the time of that run is added to the final one.
        self._first_runs: dict[int, Trial] = {}
        # By content of the model: the finished trial with the lowest number.
        self._evaluated: dict[str, Trial] = {}
        self._evaluates_float_model = state.reference is None
        if self._evaluates_float_model:
            workers.submit(Trial(FLOAT_MODEL, Recipe()), None, KnownModels())

    @property
    def capacity(self) -> int:
        """Number of workers."""
        return self._workers.capacity

    @property
    def idle(self) -> int:
        """Number of workers without work."""
        return self.capacity - len(self._running) - len(self._waiting) - int(self._evaluates_float_model)

    @property
    def busy(self) -> bool:
        """Whether a result is pending."""
        pending = self._running or self._waiting or self._ended or self._deferred
        return bool(pending) or self._evaluates_float_model

    def submit(self, trial: Trial, samples: int | None = None) -> None:
        """Schedule a trial.

        Args:
            trial: The trial. If its content is set, an earlier rung of its race has already written the model.
            samples: Evaluate on this many samples; None on all.
        """
        starts_here = trial.content is None and not self._workers.isolated
        if starts_here and self._state.study.start(trial) >= MAX_INTERRUPTIONS:
            self._ended.append(trial.failed(f"the process of the search ended {MAX_INTERRUPTIONS} times while it ran"))
            return
        self._waiting.append(_Submitted(trial, samples))
        self._start_waiting()

    def wait(self) -> Trial | None:
        """Return the next finished trial; None if the float model was evaluated or a trial was deferred.

        A trial whose worker died is started again until it has been started `MAX_ATTEMPTS` times.

        Raises:
            StageError: The float model cannot be evaluated.
            StoreError: The disk is full.
            OutOfTime: Running trials exceed the budget by far. The float model, the first trial and those of
                `Space.always` are finished nevertheless: without them all the time would be wasted.
        """
        if self._ended:
            return self._ended.popleft()
        self._start_waiting()
        may_stop = not self._evaluates_float_model and self._state.best is not None
        result = self._workers.wait(self._state.time.deadline if may_stop else None)
        if result.number == FLOAT_MODEL:
            self._evaluates_float_model = False
            self._state.set_reference(result)
            self._start_waiting()
            return None
        submitted = self._running.pop(result.number)
        trial = replace(result, assignment=submitted.trial.assignment)
        if trial.worker_died:
            self._deaths[trial.number] += 1
            if self._deaths[trial.number] < MAX_ATTEMPTS:
                self.submit(submitted.trial, submitted.samples)
                return self.wait()
            trial = replace(trial, error=f"{trial.error}, {MAX_ATTEMPTS} times")
        first_run = self._first_runs.pop(trial.number, None)
        trial = trial if first_run is None else trial.with_work_of(first_run)
        if trial.state == "waiting":
            self._deferred.append(_Deferred(submitted, trial, frozenset(self._running)))
        else:
            self.note_model(trial)
        self._resolve_deferred()
        self._start_waiting()
        return trial if trial.is_finished else None

    def run_all(self, trials: Sequence[Trial], samples: int | None) -> Iterator[Trial]:
        """Run several trials, or rungs of their race, and yield them as they finish."""
        for trial in trials:
            self.submit(trial, samples)
        expected = len(trials)
        while expected:
            finished = self.wait()
            if finished is not None:
                expected -= 1
                yield finished

    def stop_out_of_time(self) -> Stop:
        """Leave running trials for a later search with a larger budget, and return the reason to stop."""
        self.forget_running()
        self._state.study.set_seconds(self._state.seconds)
        return self._state.out_of_time() or Stop(StopKind.TIME, self._state.time.limit or 0.0)

    def forget_running(self) -> None:
        """Do not count running trials as started: the user stopped the search, not the trial."""
        if self._workers.isolated:
            return
        for submitted in (*self._running.values(), *self._waiting):
            self._state.study.forget_start(submitted.trial)

    def note_model(self, trial: Trial) -> None:
        """Remember the model of a finished trial, whether it ran here or before an interruption."""
        if trial.state == "failed":
            # It failed in a later rung of its race, so no other trial can share its score.
            self._evaluated = {
                content: other for content, other in self._evaluated.items() if other.number != trial.number
            }
        elif trial.content is not None and trial.same_as is None:
            known = self._evaluated.get(trial.content, trial)
            self._evaluated[trial.content] = min(trial, known, key=lambda either: either.number)

    def first_independent(self, trials: Iterable[Trial]) -> int:
        """Return the index of the first trial that shares no unfinished stage with running trials, else 0.

        Of two trials that share one, the second would wait for the first, or compute the same stage again.
        """
        unfinished = self._state.costs.unfinished
        running = [
            unfinished(submitted.trial.recipe)
            for submitted in self._running.values()
            if submitted.trial.content is None
        ]
        independent = (
            index
            for index, trial in enumerate(trials)
            if all(work.isdisjoint(unfinished(trial.recipe)) for work in running)
        )
        return next(independent, 0)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) + int(self._evaluates_float_model) < self._workers.capacity:
            index = self.first_independent(submitted.trial for submitted in self._waiting)
            submitted = self._waiting[index]
            del self._waiting[index]
            trial = submitted.trial
            self._running[trial.number] = submitted
            for step in trial.recipe.tune.steps:
                on_this_machine(step)  # warns of missing devices here, once, and not in every worker
            known = self._known_models(submitted) if trial.content is None else KnownModels()
            # Parameter values stay here: a worker does not need them, and they may be objects that cannot be pickled.
            self._workers.submit(replace(trial, state="running", assignment={}), submitted.samples, known)

    def _resolve_deferred(self) -> None:
        """Finish deferred trials whose model an earlier trial has by now; restart those that nobody evaluates.

        Of several deferred trials with the same model only the first is restarted.
        """
        under_way = {*self._running, *(submitted.trial.number for submitted in self._waiting)}
        restarted: dict[str, int] = {}
        deferred, self._deferred = sorted(self._deferred, key=lambda entry: entry.trial.number), []
        for entry in deferred:
            number, content = entry.trial.number, entry.trial.content
            assert content is not None
            earlier = self._earlier_models(number).get(content)
            if earlier is not None:
                self._ended.append(replace(entry.trial, state="complete", same_as=earlier))
            elif content in restarted:
                self._deferred.append(replace(entry, suspects=frozenset({restarted[content]})))
            elif content in self._evaluated or entry.suspects.isdisjoint(under_way):
                restarted[content] = number
                self._first_runs[number] = entry.trial
                self._waiting.appendleft(replace(entry.submitted, unclaimed=content))
            else:
                self._deferred.append(entry)

    def _known_models(self, submitted: _Submitted) -> KnownModels:
        number = submitted.trial.number
        later = {
            content: replace(trial, assignment={})
            for content, trial in self._evaluated.items()
            if trial.number > number
        }
        return KnownModels(self._earlier_models(number), later, submitted.unclaimed)

    def _earlier_models(self, number: int) -> dict[str, int]:
        """Return models of trials before this one; all of those are recorded before it is."""
        evaluated = {content: trial.number for content, trial in self._evaluated.items()}
        known = evaluated | self._state.first_with_content
        return {content: earlier for content, earlier in known.items() if earlier < number}


class SearchLoop:
    """Proposes, runs and records trials until there is a reason to stop; each trial is evaluated in full.

    Args:
        state: The state of the search.
        proposer: Proposes trials.
        scheduler: Runs them.
        known: Trials proposed before an interruption; finished ones are not run again.
    """

    def __init__(self, state: SearchState, proposer: Proposer, scheduler: Scheduler, known: Sequence[Trial]) -> None:
        self._state = state
        self._proposer = proposer
        self._scheduler = scheduler
        self._proposed = len(known)
        self._finished = {trial.number: trial for trial in known if trial.is_finished}
        state.finished = self._finished
        self._waiting = deque(trial for trial in known if not trial.is_finished)
        for trial in self._finished.values():
            scheduler.note_model(trial)
        self._exhausted = False

    def run(self) -> Stop:
        """Run until there is a reason to stop, and return it."""
        while True:
            self._record()
            if self._state.stopped_by is not None:
                return self._state.stopped_by
            late = self._state.out_of_time() or self._schedule()
            if not self._scheduler.busy:
                return late or ALL_TRIED
            try:
                trial = self._scheduler.wait()
            except OutOfTime:
                return self._scheduler.stop_out_of_time()
            if trial is not None:
                self._state.study.save_result(trial)
                self._finished[trial.number] = trial

    def _record(self) -> None:
        """Record finished trials in the order of their numbers."""
        if self._state.reference is None:
            return
        while self._state.stopped_by is None and len(self._state.trials) in self._finished:
            self._state.record(self._finished.pop(len(self._state.trials)))

    def _schedule(self) -> Stop | None:
        """Propose trials and give every idle worker one.

        Returns:
            The reason if there is no time for the next trial.
        """
        while self._may_propose():
            trial = self._proposer.next(self._proposed, self._proposed + 1 - (self._proposer.look_ahead or 0))
            if trial is None:
                self._exhausted = True
            else:
                self._proposed += 1
                self._waiting.append(trial)
        while self._waiting and self._scheduler.idle > 0:
            index = self._index_of_next()
            late = self._state.out_of_time(self._waiting[index].recipe)
            if late is not None:
                return late
            self._scheduler.submit(self._waiting[index])
            del self._waiting[index]
        return None

    def _index_of_next(self) -> int:
        """Return the index of the waiting trial to run next: the first that shares no unfinished stage with others.

        If time may run out before the trials it overtakes are done, it is the very first: trials are recorded in
        order, so the result of the overtaking one would be lost.
        """
        index = self._scheduler.first_independent(self._waiting)
        overtaken = [self._waiting[place].recipe for place in range(index + 1)]
        seconds = sum(self._state.estimated_seconds(recipe) for recipe in overtaken)
        return 0 if self._state.time.refusal(seconds) is not None else index

    def _may_propose(self) -> bool:
        limit = self._state.options.n_trials
        if self._exhausted or (limit is not None and self._proposed >= limit):
            return False
        ahead = self._proposer.look_ahead
        if ahead is not None and self._proposed - len(self._state.trials) >= ahead:
            return False
        # A few more than there are idle workers, so that each finds a trial that shares nothing with the others. No
        # more than that: a proposal may take long, and the later it is made, the more is known about the time left.
        idle = self._scheduler.idle
        return idle > 0 and len(self._waiting) < idle + 2 * (self._scheduler.capacity - 1)
