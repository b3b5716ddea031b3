"""Workers on the machines of a Ray cluster."""

import importlib
import time
from dataclasses import dataclass
from typing import Any

from quantry.autosearch.context import SearchContext
from quantry.autosearch.time_limit import OutOfTime, longest_wait
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import KnownModels, TrialRunner
from quantry.autosearch.workers import received, run_guarded, shared_runner
from quantry.errors import MissingExtraError, RecipeError, StoreError
from quantry.recipe import Recipe
from quantry.recipe.search_options import SearchOptions
from quantry.runtime.threads import limit_threads

LOCAL = "local"
"""The address of a cluster that is started for the search, on this machine."""


class RemoteRunner:
    """The Ray actor: runs trials in a process of the cluster, one at a time.

    Args:
        runner: Runs them.
        threads: onnxruntime threads.
    """

    def __init__(self, runner: TrialRunner, threads: int) -> None:
        limit_threads(threads)
        self._runner = runner

    def run(self, trial: Trial, samples: int | None, known: KnownModels) -> Trial | StoreError:
        """Run a trial."""
        return run_guarded(self._runner, trial, samples, known)


@dataclass
class _Worker:
    actor: Any
    trial: Trial | None = None
    answer: Any = None
    started: float = 0.0


class RayWorkers:
    """Actors in a Ray cluster.

    All machines must have quantry installed and see the output directory, the store, the float model and the data
    under the same paths; the evaluator and the data must be picklable. Every actor reserves as many CPUs of the cluster
    as it has threads.

    Args:
        context: What all trials share.
        options: Address of the cluster, number of actors, threads and the timeout.

    Raises:
        MissingExtraError: Ray is not installed.
        RecipeError: The cluster cannot be reached, or the evaluator or the data cannot be pickled.
    """

    isolated = True

    def __init__(self, context: SearchContext, options: SearchOptions) -> None:
        assert options.cluster is not None
        self._ray = _connected(options.cluster)
        self.capacity = options.n_jobs
        self._threads = options.threads or 1
        self._timeout = options.trial_timeout
        try:
            self._runner = self._ray.put(shared_runner(context))
        except TypeError as error:
            raise RecipeError(f"on a cluster the evaluator and the data must be picklable, got {error}") from error
        self._workers = [_Worker(self._actor()) for _ in range(options.n_jobs)]

    def prepare(self, recipe: Recipe) -> None:
        """Do nothing: workers may run on other machines."""

    def submit(self, trial: Trial, samples: int | None, known: KnownModels) -> None:
        """Send a trial to an idle actor."""
        worker = next(worker for worker in self._workers if worker.trial is None)
        worker.trial, worker.started = trial, time.monotonic()
        worker.answer = worker.actor.run.remote(trial, samples, known)

    def wait(self, deadline: float | None = None) -> Trial:
        """Return the next trial that has a result; that of a dead or timed-out actor is failed.

        Raises:
            StoreError: An actor found the disk full.
            OutOfTime: The deadline has passed; `close` stops what is running.
        """
        while True:
            busy = [worker for worker in self._workers if worker.trial is not None]
            self._ray.wait(
                [worker.answer for worker in busy],
                num_returns=1,
                timeout=longest_wait(deadline, (worker.started for worker in busy), self._timeout),
            )
            for worker in busy:
                if self._ray.wait([worker.answer], timeout=0)[0]:
                    return self._received(worker)
                if self._timeout is not None and time.monotonic() - worker.started >= self._timeout:
                    return self._stopped(worker, f"stopped after the timeout of {self._timeout:g} s")
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTime

    def close(self) -> None:
        """Kill all actors and leave the cluster."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []
        self._ray.shutdown()

    def _received(self, worker: _Worker) -> Trial:
        try:
            answer = self._ray.get(worker.answer)
        except self._ray.exceptions.RayError as error:
            message = f"its process in the cluster died: {type(error).__name__}"
            return self._stopped(worker, message, worker_died=True)
        worker.trial = None
        return received(answer)

    def _stopped(self, worker: _Worker, error: str, *, worker_died: bool = False) -> Trial:
        assert worker.trial is not None
        trial = worker.trial.failed(error, seconds=time.monotonic() - worker.started, worker_died=worker_died)
        self._ray.kill(worker.actor)
        worker.actor, worker.trial = self._actor(), None
        return trial

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
