"""Runs trials as they come, as many at a time as there are workers."""

from collections import deque
from collections.abc import Sequence

from quantry.autosearch.desk import Desk
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.proposer import Proposer
from quantry.autosearch.study import Proposal
from quantry.autosearch.time_limit import OutOfTime

TRIED = "every configuration was tried"
"""Why a search stops that has nothing left to do."""


class Stream:
    """Proposes, runs and settles trials until there is a reason to stop.

    Args:
        ledger: Takes what is finished.
        proposer: Names what to try.
        desk: Has it run.
        known: What was proposed before an interruption; finished ones are not run again.
    """

    def __init__(self, ledger: Ledger, proposer: Proposer, desk: Desk, known: Sequence[Proposal]) -> None:
        self._ledger = ledger
        self._proposer = proposer
        self._desk = desk
        self._proposals = {proposal.number: proposal for proposal in known}
        self._arrived = {proposal.number: proposal.outcome for proposal in known if proposal.outcome is not None}
        self._waiting = deque(proposal for proposal in known if proposal.outcome is None)
        for outcome in self._arrived.values():
            desk.note(outcome)
        self._exhausted = False

    def run(self) -> str:
        """Run until there is a reason to stop, and return it."""
        while True:
            self._settle()
            if self._ledger.stopped_by is not None:
                return self._ledger.stopped_by
            late = self._ledger.out_of_time() or self._fill()
            if not self._desk.busy:
                return late or TRIED
            try:
                outcome = self._desk.wait()
            except OutOfTime:
                return self._desk.cut_off()
            if outcome is not None:
                self._ledger.study.record(self._proposals[outcome.number], outcome)
                self._arrived[outcome.number] = outcome

    def _settle(self) -> None:
        """Hand over what is finished, in the order of numbers."""
        if self._ledger.reference is None:
            return
        while self._ledger.stopped_by is None and len(self._ledger.trials) in self._arrived:
            outcome = self._arrived.pop(len(self._ledger.trials))
            self._ledger.settle(self._proposals[outcome.number], outcome)

    def _fill(self) -> str | None:
        """Propose as far ahead as is allowed, and give every free worker something to do.

        Returns:
            Why a worker gets nothing though there is something to do: there is no time for it.
        """
        while self._may_propose():
            number = len(self._proposals)
            proposal = self._proposer.next(number, number + 1 - (self._proposer.look_ahead or 0))
            if proposal is None:
                self._exhausted = True
            else:
                self._proposals[proposal.number] = proposal
                self._waiting.append(proposal)
        while self._waiting and self._desk.idle > 0:
            place = self._place_of_next()
            late = self._ledger.out_of_time(self._waiting[place].configuration.recipe)
            if late is not None:
                return late
            self._desk.submit(self._waiting[place])
            del self._waiting[place]
        return None

    def _place_of_next(self) -> int:
        """Return the place of the proposal to run next: the first that shares no unfinished work with others.

        It is the first of all where the time may end before those that are passed over: without them it could not be
        settled, and would be lost.
        """
        place = self._desk.first_apart(self._waiting)
        passed = [self._waiting[index].configuration.recipe for index in range(place + 1)]
        seconds = sum(self._ledger.cost(recipe) for recipe in passed)
        return 0 if self._ledger.time.refusal(seconds) is not None else place

    def _may_propose(self) -> bool:
        limit = self._ledger.options.stop.iterations
        if self._exhausted or (limit is not None and len(self._proposals) >= limit):
            return False
        if self._proposer.look_ahead is not None:
            return len(self._proposals) - len(self._ledger.trials) < self._proposer.look_ahead
        # A few more than there are workers for, so that each finds one that shares nothing with the others' work.
        return self._desk.idle > 0 and len(self._waiting) < self._desk.idle + 2 * (self._desk.capacity - 1)
