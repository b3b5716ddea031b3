"""Racing: evaluates several trials on growing subsets of the samples and prunes those that are unlikely to win."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.evaluator import Score
from quantry.autosearch.proposer import Proposer
from quantry.autosearch.scheduler import Scheduler
from quantry.autosearch.state import SearchState
from quantry.autosearch.stop import ALL_TRIED, Stop
from quantry.autosearch.time_limit import OutOfTime
from quantry.autosearch.trial import Trial
from quantry.evaluate.paired import cannot_win, difference_interval

# The first rung: fewer samples say too little about the rest.
_FIRST_SHARE, _FIRST_SAMPLES = 1 / 16, 32

FEW_SAMPLES = 200
"""Below this, a note says that estimates are rough."""

# Trials that race each other. The more of them, the better the leader is at the first rung and the more are pruned
# there; but samplers and stop conditions learn nothing until the cohort is done.
_COHORT = 16

_Contestant = tuple[NDArray[np.float64], Mapping[str, float]]
"""Scores of the first samples, and the other objectives."""


def rungs(size: int) -> list[int]:
    """Return the number of samples of each rung: 1/16 of all but at least 32, then doubled up to all."""
    counts = [min(size, max(_FIRST_SAMPLES, math.ceil(size * _FIRST_SHARE)))]
    while counts[-1] < size:
        counts.append(min(size, counts[-1] * 2))
    return counts


@dataclass
class _Entry:
    """A trial in a race, with the scores of its samples and the number of the trial that it was pruned for."""

    trial: Trial
    scores: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    pruned_by: int | None = None


class RacingLoop:
    """Proposes trials in cohorts, races each cohort against the best so far, and records them.

    The samples and their order are the same for all trials, so scores are compared sample by sample. Results do not
    depend on the number of workers. Per-sample scores are saved at once, so that an interrupted search evaluates no
    sample twice.

    Args:
        state: The state of the search.
        proposer: Proposes trials.
        scheduler: Runs them.
        known: Trials proposed before an interruption.
        size: Number of samples.
    """

    def __init__(
        self, state: SearchState, proposer: Proposer, scheduler: Scheduler, known: Sequence[Trial], size: int
    ) -> None:
        self._state = state
        self._proposer = proposer
        self._scheduler = scheduler
        self._known = {trial.number: trial for trial in known if trial.is_finished}
        self._waiting = deque(trial for trial in known if not trial.is_finished)
        self._size = size
        self._sign = 1.0 if state.direction == "maximize" else -1.0

    def run(self) -> Stop:
        """Run until there is a reason to stop, and return it."""
        while self._state.reference is None:
            self._scheduler.wait()
        self._record(self._known)
        while self._state.stopped_by is None:
            cohort = self._cohort()
            if not cohort:
                late = self._state.time.refusal(math.inf)
                return late if self._waiting and late is not None else ALL_TRIED
            try:
                finished = self._race(cohort)
            except OutOfTime:
                return self._scheduler.stop_out_of_time()
            # In order of numbers: whatever a killed process has saved can then be recorded without gaps.
            for number in sorted(finished):
                self._state.study.save_result(finished[number])
            self._record(finished)
        return self._state.stopped_by

    def _record(self, finished: Mapping[int, Trial]) -> None:
        for number in sorted(finished):
            if self._state.stopped_by is None:
                self._state.record(finished[number])

    def _cohort(self) -> list[Trial]:
        """Return the trials that race next: those already proposed, then new ones, as many as there is time for.

        Without a time limit, cohorts start at the same numbers no matter when a search was interrupted.
        """
        done, limit = len(self._state.trials), self._state.options.n_trials
        size = _COHORT if self._proposer.look_ahead is None else 2 * self._proposer.look_ahead
        end = size * (done // size + 1)
        cohort: list[Trial] = []
        while done + len(cohort) < (end if limit is None else min(end, limit)):
            if not self._waiting:
                trial = self._proposer.next(done + len(cohort), done)
                if trial is None:
                    break
                self._waiting.append(trial)
            if self._waiting[0].recipe not in self._state.always and not self._has_time([*cohort, self._waiting[0]]):
                break
            cohort.append(self._waiting.popleft())
        return cohort

    def _has_time(self, cohort: Sequence[Trial]) -> bool:
        """Return whether a cohort is expected to finish in time.

        A cohort of several may use half of the time left, so that the last trials run one by one. The first cohort has
        one trial per worker, because nothing is known about their time yet.
        """
        left, jobs = self._state.time.left, self._state.options.n_jobs
        if left is None:
            return True
        if not self._state.trials:
            return left > 0 and len(cohort) <= jobs
        seconds = sum(self._state.costs.estimates(trial.recipe for trial in cohort))
        return seconds <= left if len(cohort) == 1 else seconds / jobs <= left / 2

    def _race(self, cohort: Sequence[Trial]) -> dict[int, Trial]:
        entries = {trial.number: _Entry(trial) for trial in cohort}
        alive = set(entries)
        first = True
        while alive:
            self._run_rungs(entries, alive, first=first)
            alive, first = self._revived(entries), False
        return {number: self._concluded(entries, number) for number in entries}

    def _run_rungs(self, entries: dict[int, _Entry], alive: set[int], *, first: bool) -> None:
        """Race some entries of a cohort, those that have started already from where they stopped."""
        for samples in rungs(self._size):
            pending = [number for number in sorted(alive) if (entries[number].trial.samples or 0) < samples]
            for trial in self._scheduler.run_all([entries[number].trial for number in pending], samples):
                self._update(entries[trial.number], trial)
                self._state.message(self._progress(trial, samples))
            alive -= {number for number in alive if entries[number].trial.state == "failed"}
            alive -= self._duplicates(entries, alive) if first else set()
            alive -= self._pruned(entries, alive, alive.intersection(pending), samples)
            first = False

    def _revived(self, entries: dict[int, _Entry]) -> set[int]:
        """Return the trials that were pruned for one that failed later; they race on."""
        failed = {number for number, entry in entries.items() if entry.trial.state == "failed"}
        revived = {number for number, entry in entries.items() if entry.pruned_by in failed}
        for number in revived:
            entries[number].pruned_by = None
        return revived

    def _progress(self, trial: Trial, samples: int) -> str:
        if trial.same_as is not None:
            return f"trial {trial.number}: same model as trial {trial.same_as}"
        done = f"trial {trial.number}, {min(samples, self._size)} of {self._size} samples"
        return f"{done}: {'failed' if trial.score is None else f'{trial.score:.6g}'}"

    def _update(self, entry: _Entry, finished: Trial) -> None:
        """Add the result of a rung to an entry."""
        before = entry.trial
        if before.is_finished:
            # A later rung only evaluates: stages and objectives are those of the first.
            finished = replace(
                finished,
                objectives=before.objectives,
                content=before.content,
                computed=before.computed,
                reused=before.reused,
                seconds=before.seconds + finished.seconds,
            )
        entry.trial = finished
        entry.scores = self._state.directory.read_scores(finished.number)

    def _duplicates(self, entries: dict[int, _Entry], alive: set[int]) -> set[int]:
        """Return the trials whose model equals an earlier trial's; they will share its score."""
        seen = dict(self._state.first_with_content)
        duplicates = set()
        for number in sorted(alive):
            trial = entries[number].trial
            first = number if trial.content is None else seen.setdefault(trial.content, number)
            if first != number:
                # Two workers may have evaluated both; one score on the first samples does not count.
                entries[number].trial = replace(trial, same_as=first)
                duplicates.add(number)
        return duplicates

    def _pruned(self, entries: dict[int, _Entry], alive: set[int], evaluated: set[int], samples: int) -> set[int]:
        """Return which of the trials just evaluated cannot win; after all samples nobody is pruned."""
        if samples >= self._size:
            return set()
        complete = {number for number, entry in entries.items() if entry.trial.samples == self._size}
        contestants = {
            number: (entries[number].scores[:samples], entries[number].trial.objectives) for number in alive | complete
        }
        contestants |= self._incumbents(samples)
        pruned = set()
        for number in sorted(evaluated):
            champion = self._champion(contestants, number)
            if champion is None or entries[number].trial.recipe in self._state.always:
                continue
            ours, theirs = self._sign * contestants[number][0], self._sign * contestants[champion][0]
            if cannot_win(ours, theirs, self._size):
                entries[number].pruned_by = champion
                pruned.add(number)
        return pruned

    def _incumbents(self, samples: int) -> dict[int, _Contestant]:
        """Return the best trials of earlier cohorts, with the scores of their first samples."""
        several = len(self._state.options.objectives) > 1
        trials = self._state.pareto if several else (self._state.best,)
        scores = [
            (trial, self._state.directory.read_scores(trial.number if trial.same_as is None else trial.same_as))
            for trial in trials
            if trial is not None
        ]
        return {trial.number: (known[:samples], trial.objectives) for trial, known in scores if len(known) >= samples}

    def _champion(self, contestants: Mapping[int, _Contestant], number: int) -> int | None:
        """Return the best of those that are ahead of a trial and no worse in any other objective."""

        def standing(other: int) -> tuple[float, int]:
            # Of two equal ones the earlier is ahead.
            return self._sign * float(contestants[other][0].mean()), -other

        others = self._state.options.objectives[1:]
        ahead = [
            other
            for other, (_, objectives) in contestants.items()
            if all(objectives[name] <= contestants[number][1][name] for name in others)
            and standing(other) > standing(number)
        ]
        return max(ahead, key=standing, default=None)

    def _concluded(self, entries: dict[int, _Entry], number: int) -> Trial:
        entry = entries[number]
        if entry.trial.state == "failed" or entry.pruned_by is None:
            return entry.trial
        score = self._estimate(entries, number)
        return replace(
            entry.trial, state="pruned", score=score.value, interval=score.interval, samples=len(entry.scores)
        )

    def _estimate(self, entries: dict[int, _Entry], number: int) -> Score:
        """Estimate the score of a pruned trial: the score of the winner plus the mean difference on shared samples.

        The mean of its own samples alone would favour trials that were pruned after easy samples.
        """
        entry = entries.get(number)
        if entry is None or entry.pruned_by is None:
            return Score.of_samples(self._state.directory.read_scores(number))
        better = self._estimate(entries, entry.pruned_by)
        rival = self._state.directory.read_scores(entry.pruned_by)
        difference = entry.scores - rival[: len(entry.scores)]
        low, high = difference_interval(entry.scores, rival[: len(entry.scores)]) or (0.0, 0.0)
        return Score(better.value + float(difference.mean()), (better.value + low, better.value + high))
