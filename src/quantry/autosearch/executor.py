"""Who runs trials."""

from collections import deque
from typing import Protocol

from quantry.autosearch.options import SearchOptions
from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.ray_pool import RayPool
from quantry.autosearch.setting import Place, Setting
from quantry.autosearch.time_limit import interrupted_at
from quantry.autosearch.trial_runner import TrialRunner
from quantry.autosearch.worker_pool import Staffing, WorkerPool
from quantry.runtime.threads import core_count


class Executor(Protocol):
    """Runs tasks and hands outcomes back in any order.

    Attributes:
        capacity: How many tasks it works on at a time.
        isolated: A task that ends its process does not end this one.
    """

    capacity: int
    isolated: bool

    def submit(self, task: TrialTask) -> None:
        """Take a task; there are never more than `capacity` that were not handed back."""
        ...

    def wait(self, deadline: float | None = None) -> Outcome:
        """Return the outcome of any task that was submitted and not handed back yet.

        Args:
            deadline: When to wait no longer, in seconds of `time.monotonic`; None never.

        Raises:
            OutOfTime: There was none until then.
        """
        ...

    def close(self) -> None:
        """Drop what is running."""
        ...


class InlineExecutor:
    """Runs one task at a time in this process, when it is waited for.

    Args:
        runner: Runs it.
    """

    capacity = 1
    isolated = False

    def __init__(self, runner: TrialRunner) -> None:
        self._runner = runner
        self._tasks: deque[TrialTask] = deque()

    def submit(self, task: TrialTask) -> None:
        """Take a task."""
        self._tasks.append(task)

    def wait(self, deadline: float | None = None) -> Outcome:
        """Run the oldest task.

        Raises:
            OutOfTime: It was interrupted, because it was not finished in time.
        """
        with interrupted_at(deadline):
            return self._runner.run(self._tasks.popleft())

    def close(self) -> None:
        """Drop what was not begun."""
        self._tasks.clear()


def make_executor(setting: Setting, place: Place, options: SearchOptions) -> Executor:
    """Return workers in processes of their own, or this process where one worker with all its cores is enough."""
    apart = options.n_jobs > 1 or options.threads is not None or options.trial_timeout is not None or options.devices
    if not apart and options.cluster is None:
        return InlineExecutor(TrialRunner(setting, place))
    threads = options.threads or (1 if options.n_jobs > 1 else core_count())
    if options.cluster is not None:
        limits = (options.threads or 1, options.trial_timeout)
        return RayPool(setting, place, options.cluster, options.n_jobs, limits)
    return WorkerPool(setting, place, Staffing(options.n_jobs, threads, options.trial_timeout, options.devices))
