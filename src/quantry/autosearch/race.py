"""Stops a configuration once it cannot win: evaluates several on growing subsets of the same samples."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.desk import Desk
from quantry.autosearch.evaluator import Score
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.outcome import Outcome
from quantry.autosearch.proposer import Proposer
from quantry.autosearch.stream import TRIED
from quantry.autosearch.study import Proposal
from quantry.autosearch.time_limit import OutOfTime
from quantry.autosearch.verdict import cannot_win
from quantry.evaluate import bootstrap_interval

_FIRST_SHARE, _FIRST_SAMPLES = 1 / 16, 32
FEW_SAMPLES = 200
"""With fewer the user is told that estimates are rough."""

_COHORT = 16

_Entrant = tuple[NDArray[np.float64], Mapping[str, float]]
"""Scores of the first samples, and the other objectives."""


def rungs(size: int) -> list[int]:
    """Return how many samples each leg of a race has: a sixteenth but at least 32, then twice as many, up to all."""
    first = min(size, max(_FIRST_SAMPLES, math.ceil(size * _FIRST_SHARE)))
    legs = [first]
    while legs[-1] < size:
        legs.append(min(size, legs[-1] * 2))
    return legs


@dataclass
class _Runner:
    """One configuration in a race."""

    proposal: Proposal
    outcome: Outcome
    scores: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    beaten_by: int | None = None


class Race:
    """Proposes configurations in cohorts, races each against the best so far, and settles them.

    The samples and their order are the same for all, so scores are compared sample by sample. What happens does not
    depend on the number of workers. Scores of samples are on disk as soon as they are there, so that a search that was
    interrupted evaluates none twice.

    Args:
        ledger: Takes what is finished.
        proposer: Names what to try.
        desk: Has it run.
        known: What was proposed before an interruption.
        size: How many samples there are.
    """

    def __init__(self, ledger: Ledger, proposer: Proposer, desk: Desk, known: Sequence[Proposal], size: int) -> None:
        self._ledger = ledger
        self._proposer = proposer
        self._desk = desk
        self._known = list(known)
        self._pending = deque(proposal for proposal in known if proposal.outcome is None)
        self._size = size
        self._sign = 1.0 if ledger.direction == "maximize" else -1.0

    def run(self) -> str:
        """Run until there is a reason to stop, and return it."""
        while self._ledger.reference is None:
            self._desk.wait()
        self._settle({proposal.number: proposal for proposal in self._known}, self._finished())
        while self._ledger.stopped_by is None:
            cohort = self._cohort()
            if not cohort:
                late = self._ledger.time.refusal(math.inf)
                return late if self._pending and late is not None else TRIED
            try:
                outcomes = self._run_cohort(cohort)
            except OutOfTime:
                return self._desk.cut_off()
            proposals = {proposal.number: proposal for proposal in cohort}
            # In order: what a killed process has written down can then be settled as far as it goes.
            for number in sorted(outcomes):
                self._ledger.study.record(proposals[number], outcomes[number])
            self._settle(proposals, outcomes)
        return self._ledger.stopped_by

    def _finished(self) -> dict[int, Outcome]:
        return {proposal.number: proposal.outcome for proposal in self._known if proposal.outcome is not None}

    def _settle(self, proposals: Mapping[int, Proposal], outcomes: dict[int, Outcome]) -> None:
        for number in sorted(outcomes):
            if self._ledger.stopped_by is None:
                self._ledger.settle(proposals[number], outcomes[number])

    def _cohort(self) -> list[Proposal]:
        """Return who races next: those that were proposed already, then others, as many as there is time for.

        Without a limit of time, cohorts begin at the same numbers whenever a search was interrupted.
        """
        done, limit = len(self._ledger.trials), self._ledger.options.stop.iterations
        size = _COHORT if self._proposer.look_ahead is None else 2 * self._proposer.look_ahead
        end = size * (done // size + 1)
        cohort: list[Proposal] = []
        while done + len(cohort) < (end if limit is None else min(end, limit)):
            if not self._pending:
                proposal = self._proposer.next(done + len(cohort), done)
                if proposal is None:
                    break
                self._pending.append(proposal)
            if not self._has_time([*cohort, self._pending[0]]):
                break
            cohort.append(self._pending.popleft())
        return cohort

    def _has_time(self, cohort: Sequence[Proposal]) -> bool:
        """Say whether a cohort can be expected to end in time.

        One that holds several may take half of what is left, so that the last trials come one by one; the first has one
        for each worker, because nothing is known of what trials take.
        """
        left, jobs = self._ledger.time.left, self._ledger.options.n_jobs
        if left is None:
            return True
        if not self._ledger.trials:
            return left > 0 and len(cohort) <= jobs
        seconds = self._ledger.costs.estimate_all(proposal.configuration.recipe for proposal in cohort)
        return seconds <= left if len(cohort) == 1 else seconds / jobs <= left / 2

    def _run_cohort(self, cohort: Sequence[Proposal]) -> dict[int, Outcome]:
        proposals = {proposal.number: proposal for proposal in cohort}
        runners: dict[int, _Runner] = {}
        alive = set(proposals)
        while alive:
            self._run_legs(proposals, runners, alive)
            alive = self._revived(runners)
        return {number: self._concluded(runners, number) for number in runners}

    def _run_legs(self, proposals: Mapping[int, Proposal], runners: dict[int, _Runner], alive: set[int]) -> None:
        """Race some of a cohort, those that have begun already from where they stopped."""
        first = not runners
        for stop in rungs(self._size):
            behind = [number for number in sorted(alive) if first or (runners[number].outcome.samples or 0) < stop]
            for outcome in self._desk.run_all([proposals[number] for number in behind], stop, first=first):
                self._take(runners, proposals[outcome.number], outcome)
                self._ledger.tell(self._news(runners[outcome.number], stop))
            alive -= {number for number in alive if runners[number].outcome.state == "failed"}
            alive -= self._twins(runners, alive) if first else set()
            alive -= self._beaten(runners, alive, alive.intersection(behind), stop)
            first = False

    def _revived(self, runners: dict[int, _Runner]) -> set[int]:
        """Return those who were beaten by one that failed later, which counts for nothing then."""
        failed = {number for number, runner in runners.items() if runner.outcome.state == "failed"}
        revived = {number for number, runner in runners.items() if runner.beaten_by in failed}
        for number in revived:
            runners[number].beaten_by = None
        return revived

    def _news(self, runner: _Runner, stop: int) -> str:
        """Return what a leg brought, for those who wait."""
        number, score, same_as = runner.proposal.number, runner.outcome.score, runner.outcome.same_as
        if same_as is not None:
            return f"trial {number}: computes the same as trial {same_as}"
        done = f"trial {number}, {min(stop, self._size)} of {self._size} samples"
        return f"{done}: {'failed' if score is None else f'{score:.6g}'}"

    def _take(self, runners: dict[int, _Runner], proposal: Proposal, outcome: Outcome) -> None:
        """Add what a leg brought to what is known of a runner."""
        earlier = runners.get(proposal.number)
        if earlier is not None:
            first = earlier.outcome
            outcome = replace(
                outcome,
                objectives=first.objectives,
                content=first.content,
                computed=first.computed,
                reused=first.reused,
                seconds=first.seconds + outcome.seconds,
            )
        scores = self._ledger.directory.read_scores(proposal.number)
        runners[proposal.number] = _Runner(proposal, outcome, scores)

    def _twins(self, runners: dict[int, _Runner], alive: set[int]) -> set[int]:
        """Return those whose model computes the same as an earlier one's, whose score they will share."""
        seen = dict(self._ledger.contents)
        twins = set()
        for number in sorted(alive):
            outcome = runners[number].outcome
            first = number if outcome.content is None else seen.setdefault(outcome.content, number)
            if first != number:
                # Two workers may have judged both; without the others' samples its own score is none.
                runners[number].outcome = replace(outcome, same_as=first)
                twins.add(number)
        return twins

    def _beaten(self, runners: dict[int, _Runner], alive: set[int], judged: set[int], stop: int) -> set[int]:
        """Return who of those just judged cannot win any more; whoever has seen all samples is complete."""
        if stop >= self._size:
            return set()
        complete = {number for number, runner in runners.items() if runner.outcome.samples == self._size}
        entrants = {
            number: (runners[number].scores[:stop], runners[number].outcome.objectives) for number in alive | complete
        }
        entrants |= self._incumbents(stop)
        beaten = set()
        for number in sorted(judged):
            champion = self._champion(entrants, number)
            if champion is None:
                continue
            ours, theirs = self._sign * entrants[number][0], self._sign * entrants[champion][0]
            if cannot_win(ours, theirs, self._size):
                runners[number].beaten_by = champion
                beaten.add(number)
        return beaten

    def _incumbents(self, stop: int) -> dict[int, _Entrant]:
        """Return the best of earlier cohorts, with their first samples."""
        several = len(self._ledger.options.objectives) > 1
        trials = self._ledger.pareto if several else (self._ledger.best,)
        scores = [
            (trial, self._ledger.directory.read_scores(trial.number if trial.same_as is None else trial.same_as))
            for trial in trials
            if trial is not None
        ]
        return {trial.number: (known[:stop], trial.objectives) for trial, known in scores if len(known) >= stop}

    def _champion(self, entrants: Mapping[int, _Entrant], number: int) -> int | None:
        """Return the best of those that are ahead of a runner and no worse in any other objective."""

        def standing(other: int) -> tuple[float, int]:
            # Of two that are equal the earlier one is ahead.
            return self._sign * float(entrants[other][0].mean()), -other

        ahead = [
            other
            for other, (_, objectives) in entrants.items()
            if self._covers(objectives, entrants[number][1]) and standing(other) > standing(number)
        ]
        return max(ahead, key=standing, default=None)

    def _covers(self, one: Mapping[str, float], other: Mapping[str, float]) -> bool:
        """Say whether a rival is no worse in all that is not accuracy."""
        return all(one[name] <= other[name] for name in self._ledger.options.objectives[1:])

    def _concluded(self, runners: dict[int, _Runner], number: int) -> Outcome:
        runner = runners[number]
        if runner.outcome.state == "failed" or runner.beaten_by is None:
            return runner.outcome
        score = self._estimate(runners, number)
        return replace(
            runner.outcome, state="raced", score=score.value, interval=score.interval, samples=len(runner.scores)
        )

    def _estimate(self, runners: dict[int, _Runner], number: int) -> Score:
        """Return the score of whoever beat it plus the mean difference on the samples that both have.

        The mean of the samples seen alone would favour those who saw easy ones.
        """
        runner = runners.get(number)
        if runner is None or runner.beaten_by is None:
            return Score.of_samples(self._ledger.directory.read_scores(number))
        better = self._estimate(runners, runner.beaten_by)
        rival = self._ledger.directory.read_scores(runner.beaten_by)
        difference = runner.scores - rival[: len(runner.scores)]
        low, high = bootstrap_interval(difference)
        return Score(better.value + float(difference.mean()), (better.value + low, better.value + high))
