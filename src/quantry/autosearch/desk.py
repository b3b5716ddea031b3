"""Hands trials to workers and takes them back, and knows how often each was begun."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from quantry.autosearch.executor import Executor
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.study import Proposal
from quantry.autosearch.trial_runner import REFERENCE
from quantry.recipe import to_plain

ATTEMPTS = 2
"""A trial whose worker died so often is not begun again."""

INTERRUPTIONS = 5
"""So often may the process of a search end during a trial that runs inside of it.

It may be the trial's fault, or somebody ends the process again and again.
"""


@dataclass(frozen=True)
class _Deferred:
    """A trial whose model another worker was judging.

    Attributes:
        proposal: What was tried.
        task: What its worker was to do.
        outcome: What came of it.
        suspects: The trials of which one was judging, unless it had ended by then.
    """

    proposal: Proposal
    task: TrialTask
    outcome: Outcome
    suspects: frozenset[int]


class Desk:
    """Between a search and its workers.

    The float model is judged first, beside the first trials where there is more than one worker.

    Args:
        ledger: Knows what is settled.
        executor: The workers.
    """

    def __init__(self, ledger: Ledger, executor: Executor) -> None:
        self._ledger = ledger
        self._executor = executor
        self._waiting: deque[tuple[Proposal, TrialTask]] = deque()
        self._running: dict[int, tuple[Proposal, TrialTask]] = {}
        self._ended: deque[Outcome] = deque()
        self._deferred: list[_Deferred] = []
        self._deaths: Counter[int] = Counter()
        self._put_off: dict[int, Outcome] = {}
        self._arrived: dict[str, Outcome] = {}
        self._judging = ledger.reference is None
        if self._judging:
            executor.submit(TrialTask(REFERENCE, {}))

    @property
    def capacity(self) -> int:
        """How many workers there are."""
        return self._executor.capacity

    @property
    def idle(self) -> int:
        """How many workers have nothing to do."""
        return self.capacity - len(self._running) - len(self._waiting) - int(self._judging)

    @property
    def busy(self) -> bool:
        """Whether an outcome is to come, or the float model is still being judged."""
        return bool(self._running or self._waiting or self._ended or self._deferred) or self._judging

    def submit(self, proposal: Proposal, stop: int | None = None, *, first: bool = True) -> None:
        """Take a trial, or one more leg of it.

        Args:
            proposal: What to try.
            stop: Evaluate on so many samples; None on all.
            first: Quantize it first.
        """
        recipe = to_plain(proposal.configuration.recipe)
        task = TrialTask(proposal.number, recipe, stop, first)
        inside = first and not self._executor.isolated
        if inside and self._ledger.study.begin(proposal) >= INTERRUPTIONS:
            error = f"the process of the search ended {INTERRUPTIONS} times while it ran"
            self._ended.append(Outcome(proposal.number, "failed", error=error))
            return
        self._waiting.append((proposal, task))
        self._feed()

    def wait(self) -> Outcome | None:
        """Return the next outcome; None when it was the float model's, or when a trial waits for another one's.

        Raises:
            StageError: The float model cannot be judged.
            StoreError: The disk is full.
            OutOfTime: What is running exceeds the limit of time by far. The float model and the first trial are
                finished nevertheless: without them the time was wasted.
        """
        if self._ended:
            return self._ended.popleft()
        self._feed()
        hurried = not self._judging and self._ledger.best is not None
        outcome = self._executor.wait(self._ledger.time.deadline if hurried else None)
        if outcome.number == REFERENCE:
            self._judging = False
            self._ledger.set_reference(outcome)
            self._feed()
            return None
        proposal, task = self._running.pop(outcome.number)
        if outcome.deferred:
            outcome = self._with_work_before(outcome)
            self._deferred.append(_Deferred(proposal, task, outcome, frozenset(self._running)))
            self._resolve_deferred()
            self._feed()
            return None
        if outcome.died:
            self._deaths[outcome.number] += 1
            if self._deaths[outcome.number] < ATTEMPTS:
                self.submit(proposal, task.stop)
                return self.wait()
            outcome = replace(outcome, error=f"{outcome.error}, {ATTEMPTS} times")
        outcome = self._with_work_before(outcome)
        self.note(outcome)
        self._resolve_deferred()
        self._feed()
        return outcome

    def run_all(self, proposals: Sequence[Proposal], stop: int | None, *, first: bool) -> Iterator[Outcome]:
        """Run several trials, or legs of them, and yield what came of them as it comes."""
        for proposal in proposals:
            self.submit(proposal, stop, first=first)
        expected = len(proposals)
        while expected:
            outcome = self.wait()
            if outcome is not None:
                expected -= 1
                yield outcome

    def cut_off(self) -> str:
        """Leave what is running for another time, because there is none now, and return the reason."""
        self.give_up()
        self._ledger.study.add_seconds(self._ledger.seconds)
        return self._ledger.out_of_time() or "out of time"

    def give_up(self) -> None:
        """Count trials that are under way as not begun: somebody stopped the search."""
        if self._executor.isolated:
            return
        for proposal, _ in (*self._running.values(), *self._waiting):
            self._ledger.study.forget_attempt(proposal)

    def note(self, outcome: Outcome) -> None:
        """Take in which model a trial has, whether it ran here or before an interruption."""
        if outcome.state == "failed":
            # In a later leg of a race: no other trial can have its score.
            self._arrived = {
                content: other for content, other in self._arrived.items() if other.number != outcome.number
            }
        elif outcome.content is not None and outcome.same_as is None:
            first = self._arrived.get(outcome.content, outcome)
            self._arrived[outcome.content] = min(outcome, first, key=lambda either: either.number)

    def first_apart(self, proposals: Iterable[Proposal]) -> int:
        """Return the place of the first proposal that shares no unfinished work with what is running, or else 0.

        Of two that share some and run side by side, one waits for the other, or computes the same once more.
        """
        unfinished = self._ledger.costs.unfinished
        running = [unfinished(proposal.configuration.recipe) for proposal, task in self._running.values() if task.first]
        apart = (
            place
            for place, proposal in enumerate(proposals)
            if all(work.isdisjoint(unfinished(proposal.configuration.recipe)) for work in running)
        )
        return next(apart, 0)

    def _feed(self) -> None:
        while self._waiting and len(self._running) + int(self._judging) < self._executor.capacity:
            place = self.first_apart(proposal for proposal, _ in self._waiting)
            proposal, task = self._waiting[place]
            del self._waiting[place]
            self._running[proposal.number] = (proposal, task)
            self._executor.submit(self._informed(task) if task.first else task)

    def _resolve_deferred(self) -> None:
        """End trials whose model an earlier one has by now; begin those again whose model nobody is judging.

        Of several that have the same model, only the first is begun again.
        """
        under_way = {*self._running, *(proposal.number for proposal, _ in self._waiting)}
        begun: dict[str, int] = {}
        deferred, self._deferred = sorted(self._deferred, key=lambda entry: entry.proposal.number), []
        for entry in deferred:
            number, content = entry.proposal.number, entry.outcome.content
            assert content is not None
            twin = self._stand_ins(number).get(content)
            if twin is not None:
                self._ended.append(replace(entry.outcome, same_as=twin, deferred=False))
            elif content in begun:
                self._deferred.append(replace(entry, suspects=frozenset({begun[content]})))
            elif content in self._arrived or entry.suspects.isdisjoint(under_way):
                begun[content] = number
                self._put_off[number] = entry.outcome
                self._waiting.appendleft((entry.proposal, replace(entry.task, claimed=content)))
            else:
                self._deferred.append(entry)

    def _with_work_before(self, outcome: Outcome) -> Outcome:
        """Return an outcome with what its trial did before it was put off."""
        before = self._put_off.pop(outcome.number, None)
        return outcome if before is None else outcome.after(before)

    def _informed(self, task: TrialTask) -> TrialTask:
        """Return a task that knows which models are judged."""
        later = {content: outcome for content, outcome in self._arrived.items() if outcome.number > task.number}
        return replace(task, stand_ins=self._stand_ins(task.number), judged=later)

    def _stand_ins(self, number: int) -> dict[str, int]:
        """Return the models of trials before this one, which will be settled before it if they are not yet."""
        arrived = {content: outcome.number for content, outcome in self._arrived.items()}
        return {content: earlier for content, earlier in (arrived | self._ledger.contents).items() if earlier < number}
