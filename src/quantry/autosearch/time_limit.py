"""The most time that a search may take."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_OVERRUN = 0.2
"""What runs is stopped when it exceeds the limit by more than this share of it."""

_FAR = 1e6
"""Seconds; nobody sets an alarm for a deadline that is further away."""

_LONGEST_WAIT = 3600.0
"""Seconds after which whoever waits looks again: systems cannot wait for a month."""


class OutOfTime(BaseException):
    """What is running would exceed the limit by far; no error, so that whoever runs trials lets it pass."""


class TimeLimit:
    """A clock that knows when a search has to end.

    A trial is begun where its estimated time fits into what is left. One that then takes longer is finished, unless it
    exceeds the limit by more than a fifth.

    Args:
        limit: Seconds; None is no limit.
        before: Seconds that earlier parts of the search took.
    """

    def __init__(self, limit: float | None, before: float) -> None:
        self.limit = limit
        self._started = time.monotonic() - before

    @property
    def seconds(self) -> float:
        """Time of the search so far, its earlier parts included."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self.limit is None else self.limit - self.seconds

    @property
    def deadline(self) -> float | None:
        """When what runs is stopped, in seconds of `time.monotonic`; None without a limit."""
        return None if self.limit is None else self._started + self.limit * (1 + _OVERRUN)

    def refusal(self, upcoming: float = 0.0) -> str | None:
        """Return why nothing that takes so many seconds can be begun; None where there is time for it."""
        left = self.left
        if left is None or (left > 0 and upcoming <= left):
            return None
        return f"time limit of {self.limit:g} s; with a larger budget the same search goes on from here"


@contextmanager
def interrupted_at(deadline: float | None) -> Iterator[None]:
    """Raise `OutOfTime` inside of what is done in this context once its time is over.

    Only the main thread can be interrupted, on systems with alarms; elsewhere what is done here ends by itself. A timer
    that somebody else has set goes first where it is due first, and else goes on afterwards.

    Args:
        deadline: In seconds of `time.monotonic`; None never.
    """
    main = threading.current_thread() is threading.main_thread()
    if deadline is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    started = time.monotonic()
    patience = max(deadline - started, 1e-3)
    others, again = signal.getitimer(signal.ITIMER_REAL)
    if 0 < others <= patience or patience > _FAR:
        yield
        return

    def over(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if others:
            signal.setitimer(signal.ITIMER_REAL, max(others - (time.monotonic() - started), 1e-3), again)


def longest_wait(deadline: float | None, begun: Iterable[float], timeout: float | None) -> float | None:
    """Return how many seconds a pool may wait for an outcome before it has to look at its clocks; None for ever.

    Args:
        deadline: When the search ends, in seconds of `time.monotonic`; None never.
        begun: When each running trial began, likewise.
        timeout: The most seconds of one trial; None for no limit.
    """
    ends = [] if deadline is None else [deadline]
    if timeout is not None:
        ends += [start + timeout for start in begun]
    return min(max(0.0, min(ends) - time.monotonic()), _LONGEST_WAIT) if ends else None
