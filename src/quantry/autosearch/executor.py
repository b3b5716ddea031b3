"""Who runs trials."""

from collections import deque
from typing import Protocol

from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.trial_runner import TrialRunner


class Executor(Protocol):
    """Runs tasks and hands outcomes back in any order.

    Attributes:
        capacity: How many tasks it works on at a time.
    """

    capacity: int

    def submit(self, task: TrialTask) -> None:
        """Take a task; there are never more than `capacity` that were not handed back."""
        ...

    def wait(self) -> Outcome:
        """Return the outcome of any task that was submitted and not handed back yet."""
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

    def __init__(self, runner: TrialRunner) -> None:
        self._runner = runner
        self._tasks: deque[TrialTask] = deque()

    def submit(self, task: TrialTask) -> None:
        """Take a task."""
        self._tasks.append(task)

    def wait(self) -> Outcome:
        """Run the oldest task."""
        return self._runner.run(self._tasks.popleft())

    def close(self) -> None:
        """Drop what was not begun."""
        self._tasks.clear()
