"""Runs trials on the machines of a Ray cluster."""

import importlib
import time
from dataclasses import dataclass
from typing import Any

from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.setting import Place, Setting
from quantry.autosearch.single_flight import SingleFlightStore
from quantry.autosearch.time_limit import OutOfTime, longest_wait
from quantry.autosearch.trial_runner import TrialRunner
from quantry.errors import MissingExtraError, RecipeError, StoreError
from quantry.runtime.threads import limit_threads

LOCAL = "local"
"""The address of a cluster that is started for the search, on this machine."""


class RemoteRunner:
    """What runs trials in a process of the cluster, one at a time.

    Args:
        runner: Runs them.
        threads: Threads in one operator.
    """

    def __init__(self, runner: TrialRunner, threads: int) -> None:
        limit_threads(threads)
        self._runner = runner

    def run(self, task: TrialTask) -> Outcome | StoreError:
        """Run a trial; a full disk is an answer too, so that it keeps its type."""
        try:
            return self._runner.run(task)
        except StoreError as error:
            return StoreError(str(error))


@dataclass
class _Worker:
    actor: Any
    task: TrialTask | None = None
    answer: Any = None
    begun: float = 0.0


class RayPool:
    """An `Executor` of actors in a Ray cluster.

    All machines must see the output directory, the store, the float model and the data under the same paths, and have
    quantry installed; evaluator and data must be ones that pickle can write. Every actor asks for as many of the
    cluster's CPUs as it has threads.

    Args:
        setting: What all trials have in common.
        place: Where models and results go.
        address: Of the cluster: "auto", "ray://host:10001", or "local" to start one here.
        jobs: How many actors.
        limits: Threads of each, and seconds after which a trial is stopped or None.

    Raises:
        MissingExtraError: Ray is not installed.
        RecipeError: The cluster cannot be reached, or evaluator and data cannot travel.
    """

    isolated = True

    def __init__(
        self, setting: Setting, place: Place, address: str, jobs: int, limits: tuple[int, float | None]
    ) -> None:
        self._ray = _connected(address)
        self.capacity = jobs
        self._threads, self._timeout = limits
        shared = SingleFlightStore(place.store, place.directory.path / "stages.lock")
        try:
            self._runner = self._ray.put(TrialRunner(setting, Place(place.directory, shared)))
        except TypeError as error:
            raise RecipeError(
                f"on a cluster the evaluator and the data must be ones that pickle can write, got {error}"
            ) from error
        self._workers = [_Worker(self._actor()) for _ in range(jobs)]

    def submit(self, task: TrialTask) -> None:
        """Give a task to an idle actor."""
        worker = next(worker for worker in self._workers if worker.task is None)
        worker.task, worker.begun = task, time.monotonic()
        worker.answer = worker.actor.run.remote(task)

    def wait(self, deadline: float | None = None) -> Outcome:
        """Return the first outcome that arrives; an actor that died or ran out of time has one too.

        Raises:
            StoreError: An actor found the disk full.
            OutOfTime: None arrived until the deadline; `close` ends what is running.
        """
        while True:
            busy = [worker for worker in self._workers if worker.task is not None]
            self._ray.wait(
                [worker.answer for worker in busy],
                num_returns=1,
                timeout=longest_wait(deadline, (worker.begun for worker in busy), self._timeout),
            )
            for worker in busy:
                if self._ray.wait([worker.answer], timeout=0)[0]:
                    return self._received(worker)
                if self._timeout is not None and time.monotonic() - worker.begun >= self._timeout:
                    return self._replaced(worker, f"stopped after the limit of {self._timeout:g} s", died=False)
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTime

    def close(self) -> None:
        """End all actors, whatever they are at, and leave the cluster."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []
        self._ray.shutdown()

    def _received(self, worker: _Worker) -> Outcome:
        try:
            answer = self._ray.get(worker.answer)
        except self._ray.exceptions.RayError as error:
            return self._replaced(worker, f"its process in the cluster died: {type(error).__name__}", died=True)
        worker.task = None
        if isinstance(answer, StoreError):
            raise answer
        assert isinstance(answer, Outcome)
        return answer

    def _replaced(self, worker: _Worker, error: str, *, died: bool) -> Outcome:
        assert worker.task is not None
        seconds = time.monotonic() - worker.begun
        outcome = Outcome(worker.task.number, "failed", error=error, seconds=seconds, died=died)
        self._ray.kill(worker.actor)
        worker.actor, worker.task = self._actor(), None
        return outcome

    def _actor(self) -> Any:
        remote = self._ray.remote(RemoteRunner).options(num_cpus=self._threads)
        return remote.remote(self._runner, self._threads)


def _connected(address: str) -> Any:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "a search on a cluster needs the package 'ray', which is not installed; install quantry[ray]"
        ) from error
    try:
        ray.init(address, log_to_driver=False, include_dashboard=False if address == LOCAL else None)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RecipeError(f"cluster must be the address of a Ray cluster, got {address!r}: {error}") from error
    return ray
