"""Runs trials as they come, as many at a time as there are workers."""

from collections import deque
from collections.abc import Sequence

from quantry.autosearch.executor import Executor
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.proposer import Proposer
from quantry.autosearch.study import Proposal
from quantry.recipe import to_plain

ATTEMPTS = 2
"""A trial that ended its process so often is not begun again."""


def stream(ledger: Ledger, proposer: Proposer, executor: Executor, known: Sequence[Proposal]) -> str:
    """Propose, run and settle trials until there is a reason to stop.

    Args:
        ledger: Takes what is finished.
        proposer: Names what to try.
        executor: Runs it.
        known: What was proposed before an interruption; finished ones are not run again.

    Returns:
        Why it stopped.
    """
    return _Stream(ledger, proposer, executor, known).run()


class _Stream:
    def __init__(self, ledger: Ledger, proposer: Proposer, executor: Executor, known: Sequence[Proposal]) -> None:
        self._ledger = ledger
        self._proposer = proposer
        self._executor = executor
        self._proposals = {proposal.number: proposal for proposal in known}
        self._arrived = {proposal.number: proposal.outcome for proposal in known if proposal.outcome is not None}
        self._waiting = deque(proposal for proposal in known if proposal.outcome is None)
        self._running: set[int] = set()
        self._exhausted = False

    def run(self) -> str:
        try:
            while True:
                self._settle()
                if self._ledger.stopped_by is not None:
                    return self._ledger.stopped_by
                self._fill()
                if self._running:
                    self._arrive(self._executor.wait())
                elif not self._arrived:
                    return "every configuration was tried"
        except BaseException:
            for number in self._running:
                self._ledger.study.forget_attempt(self._proposals[number])
            raise

    def _settle(self) -> None:
        """Hand over what is finished, in the order of numbers."""
        settled = self._ledger.trials
        while self._ledger.stopped_by is None and len(settled) in self._arrived:
            outcome = self._arrived.pop(len(settled))
            self._ledger.settle(self._proposals[outcome.number], outcome)

    def _fill(self) -> None:
        """Propose as far ahead as is allowed, and give every free worker something to do."""
        while self._may_propose():
            proposal = self._proposer.next(len(self._proposals))
            if proposal is None:
                self._exhausted = True
            else:
                self._proposals[proposal.number] = proposal
                self._waiting.append(proposal)
        while self._waiting and len(self._running) < self._executor.capacity:
            self._begin(self._waiting.popleft())

    def _may_propose(self) -> bool:
        ahead = len(self._proposals) - len(self._ledger.trials)
        limit = self._ledger.options.stop.iterations
        if self._exhausted or (limit is not None and len(self._proposals) >= limit):
            return False
        if self._proposer.look_ahead is not None:
            return ahead < self._proposer.look_ahead
        return len(self._waiting) + len(self._running) < self._executor.capacity

    def _begin(self, proposal: Proposal) -> None:
        if self._ledger.study.begin(proposal) >= ATTEMPTS:
            self._arrive(Outcome(proposal.number, "failed", error=f"it ended its process {ATTEMPTS} times"))
            return
        self._running.add(proposal.number)
        recipe = to_plain(proposal.configuration.recipe)
        self._executor.submit(TrialTask(proposal.number, recipe, stand_ins=dict(self._ledger.contents)))

    def _arrive(self, outcome: Outcome) -> None:
        self._running.discard(outcome.number)
        self._ledger.study.record(self._proposals[outcome.number], outcome)
        self._arrived[outcome.number] = outcome
