"""`Forecast`: when a search is expected to end, from the measured costs of its stages."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """What is left of a search, as of the latest recorded trial.

    It is made once per recorded trial; between two trials only the clock runs.

    Attributes:
        made_at: Seconds since the start of the search.
        workers: How many trials run at the same time.
        estimates: Expected seconds of the next trials, as far as they are known, those that run or wait first.
        decided: How many of them are tried in this order whatever time is left; a search without time for one ends.
        others: Expected seconds of all trials after those; None if their number is unknown.
    """

    made_at: float
    workers: int
    estimates: Sequence[float]
    decided: int
    others: float | None

    def work_left(self, now: float) -> float | None:
        """Return the expected seconds until all trials are done; None if their number is unknown.

        Args:
            now: Seconds since the start of the search.
        """
        if self.others is None:
            return None
        running, waiting = self.estimates[: self.workers], self.estimates[self.workers :]
        passed = (now - self.made_at) * self.workers
        # A trial that takes longer than expected does not make those after it shorter.
        return (max(sum(running) - passed, 0.0) + sum(waiting) + self.others) / self.workers

    def until_refused(self, now: float, left: float) -> float:
        """Return the expected seconds until the time left is too short for the next trial.

        Trials that are not decided are chosen by the time that is left for them, and use all of it.

        Args:
            now: Seconds since the start of the search.
            left: Seconds until the end of the budget.
        """
        end, spent = now + left, self.made_at
        for seconds in self.estimates[: self.decided]:
            if spent + seconds / self.workers > end:
                return max(spent - now, 0.0)
            spent += seconds / self.workers
        return left
