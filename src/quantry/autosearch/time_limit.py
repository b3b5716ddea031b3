"""The time budget of a search, and how running work is interrupted when it is over."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from quantry.autosearch.stop import Stop, StopKind

# Running trials may exceed the budget by 20 % before they are stopped: estimates are rough, and a trial that is nearly
# done is worth more than punctuality.
_OVERRUN = 0.2

# A timer further away than this many seconds is not set; some systems overflow.
_FAR = 1e6

# Waits are cut into pieces of at most this many seconds; some systems cannot wait for a month.
_LONGEST_WAIT = 3600.0


class OutOfTime(BaseException):
    """Running work exceeds the budget by far; a BaseException, so that no handler of trial errors catches it."""


class TimeLimit:
    """A stopwatch that knows when a search has to end.

    A trial starts if its estimated time fits into the time left. One that takes longer is finished, unless it exceeds
    the limit by more than 20 %.

    Args:
        limit: Seconds; None is no limit.
        before: Seconds the search took before an interruption.

    Attributes:
        waived: Work starts and runs to its end even if the time is over: what must be tried in any case is not done.
        reserved: Seconds at the end of the limit that trials must leave to other work.
    """

    def __init__(self, limit: float | None, before: float) -> None:
        self.limit = limit
        self.waived = False
        self.reserved = 0.0
        self._started = time.monotonic() - before

    @property
    def seconds(self) -> float:
        """Duration of the search so far, including the time before an interruption."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float | None:
        """Seconds left for trials; None without a limit."""
        return None if self.limit is None else self.limit - self.reserved - self.seconds

    @property
    def deadline(self) -> float | None:
        """When running work is stopped, in seconds of `time.monotonic`; None without a limit."""
        if self.limit is None or self.waived:
            return None
        return self._started + (self.limit - self.reserved) * (1 + _OVERRUN)

    def refusal(self, upcoming: float = 0.0) -> Stop | None:
        """Return why work of this many seconds cannot start; None if there is time for it."""
        left = self.left
        if left is None or self.waived or (left > 0 and upcoming <= left):
            return None
        return Stop(StopKind.TIME, self.limit or 0.0)


@contextmanager
def interrupted_at(deadline: float | None) -> Iterator[None]:
    """Raise `OutOfTime` in the body of this context once the deadline has passed.

    Only the main thread can be interrupted, and only on systems with interval timers; elsewhere the body runs to its
    end. If the caller has set an earlier timer, that one stays; a later one is set again afterwards.

    Args:
        deadline: In seconds of `time.monotonic`; None never.
    """
    main = threading.current_thread() is threading.main_thread()
    if deadline is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    started = time.monotonic()
    # setitimer(0) would switch the timer off instead of firing at once.
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


def longest_wait(deadline: float | None, started: Iterable[float], timeout: float | None) -> float | None:
    """Return how many seconds to wait for workers before checking the clock again; None to wait without limit.

    Args:
        deadline: When the search ends, in seconds of `time.monotonic`; None never.
        started: When each running trial started, likewise.
        timeout: Maximum seconds of one trial; None is no limit.
    """
    ends = [] if deadline is None else [deadline]
    if timeout is not None:
        ends += [start + timeout for start in started]
    return min(max(0.0, min(ends) - time.monotonic()), _LONGEST_WAIT) if ends else None
