"""Workers that run trials: this process, or several processes on this machine."""

import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from quantry.autosearch.context import SearchContext
from quantry.autosearch.single_flight import SingleFlightStore
from quantry.autosearch.time_limit import OutOfTime, interrupted_at, longest_wait
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import KnownModels, TrialRunner
from quantry.errors import QuantryError, RecipeError, StoreError
from quantry.operating_system import core_count, forks_safely
from quantry.recipe import Recipe
from quantry.recipe.search_options import SearchOptions
from quantry.runtime import progress
from quantry.runtime.devices import MISSING_DEVICE, existing_device
from quantry.runtime.threads import limit_threads

# How often a worker checks that its parent is alive; a killed search leaves workers running for no longer than this.
_PARENT_CHECK_SECONDS = 0.5


class Workers(Protocol):
    """Run trials and return them in any order.

    Attributes:
        capacity: How many trials run at the same time.
        isolated: A trial that kills its process does not kill this one.
    """

    capacity: int
    isolated: bool

    def prepare(self, recipe: Recipe) -> None:
        """Do what trials share with all cores, before the first trial starts.

        Args:
            recipe: The recipe of the first trial.
        """
        ...

    def submit(self, trial: Trial, samples: int | None, known: KnownModels) -> None:
        """Start a trial, see `TrialRunner.run`; the caller never submits more than `capacity` at a time."""
        ...

    def wait(self, deadline: float | None = None) -> Trial:
        """Return the next trial that has a result.

        Args:
            deadline: When to stop waiting, in seconds of `time.monotonic`; None never.

        Raises:
            OutOfTime: The deadline has passed.
            StoreError: A worker found the disk full.
        """
        ...

    def close(self) -> None:
        """Stop all running trials."""
        ...


def start_workers(context: SearchContext, options: SearchOptions) -> Workers:
    """Return the workers that the options ask for; this process if it can do the work alone."""
    if options.cluster is not None:
        # Only here: Ray is an optional dependency.
        from quantry.autosearch.ray_workers import RayWorkers

        return RayWorkers(context, options)
    own_process = options.n_jobs > 1 or options.threads is not None or options.trial_timeout is not None
    if own_process or options.devices:
        return ProcessWorkers(context, options)
    return InlineWorker(context)


def shared_runner(context: SearchContext) -> TrialRunner:
    """Return the runner of one of several workers, which compute each stage once between them."""
    shared = SingleFlightStore(context.store, context.directory.path / "stages.lock")
    return TrialRunner(replace(context, store=shared))


def run_guarded(runner: TrialRunner, trial: Trial, samples: int | None, known: KnownModels) -> Trial | StoreError:
    """Run a trial in a worker; a full disk is returned, because its exception may not survive pickling."""
    try:
        return runner.run(trial, samples, known)
    except StoreError as error:
        return StoreError(str(error))


def received(message: Any) -> Trial:
    """Return the trial that `run_guarded` returned.

    Raises:
        StoreError: The worker found the disk full.
    """
    if isinstance(message, StoreError):
        raise message
    assert isinstance(message, Trial)
    return message


class InlineWorker:
    """Runs one trial at a time in this process, while it is waited for.

    Args:
        context: What all trials share.
    """

    capacity = 1
    isolated = False

    def __init__(self, context: SearchContext) -> None:
        self._runner = TrialRunner(context)
        self._submitted: deque[tuple[Trial, int | None, KnownModels]] = deque()

    def prepare(self, recipe: Recipe) -> None:
        """Do nothing: the first trial has all cores."""

    def submit(self, trial: Trial, samples: int | None, known: KnownModels) -> None:
        """Queue a trial."""
        self._submitted.append((trial, samples, known))

    def wait(self, deadline: float | None = None) -> Trial:
        """Run the oldest trial.

        Raises:
            OutOfTime: It did not finish in time and was interrupted.
        """
        with interrupted_at(deadline):
            return self._runner.run(*self._submitted.popleft())

    def close(self) -> None:
        """Drop trials that have not started."""
        self._submitted.clear()


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    trial: Trial | None = None
    started: float = 0.0


class ProcessWorkers:
    """Worker processes that share a store.

    If possible, workers are forks of this process, so that an evaluator can be any callable. On systems without fork,
    and with CUDA devices (which do not survive a fork), they are spawned and the evaluator must be picklable. A worker
    that dies or runs into `SearchOptions.trial_timeout` is replaced; `Scheduler` decides about a retry. Workers exit on
    their own when their parent dies.

    Args:
        context: What all trials share.
        options: Number of workers, threads, devices and the timeout.
    """

    isolated = True

    def __init__(self, context: SearchContext, options: SearchOptions) -> None:
        self.capacity = options.n_jobs
        self._threads = options.threads or (1 if options.n_jobs > 1 else core_count())
        self._timeout = options.trial_timeout
        self._devices = options.devices
        self._store = SingleFlightStore(context.store, context.directory.path / "stages.lock")
        self._runner = TrialRunner(replace(context, store=self._store))
        self._context = multiprocessing.get_context("fork" if _can_fork(options.devices) else "spawn")
        self._workers: list[_Worker] = []

    def prepare(self, recipe: Recipe) -> None:
        """Run the float passes of the first trial here, so that no worker has to wait for another one's.

        Workers that are forked afterwards have the results in memory.
        """
        if self._workers or self.capacity == 1 or self._timeout is not None:
            return
        try:
            self._runner.observe(recipe)
        except StoreError:
            raise
        except QuantryError:
            return  # the trial fails in the same way, with the reason
        finally:
            self._store.close()

    def submit(self, trial: Trial, samples: int | None, known: KnownModels) -> None:
        """Send a trial to an idle worker."""
        if not self._workers:
            self._workers = [self._start(index) for index in range(self.capacity)]
        worker = next(worker for worker in self._workers if worker.trial is None)
        try:
            worker.connection.send((trial, samples, known))
        except OSError:  # it died while idle, which is not the fault of a trial
            worker = self._restarted(worker)
            worker.connection.send((trial, samples, known))
        worker.trial, worker.started = trial, time.monotonic()

    def wait(self, deadline: float | None = None) -> Trial:
        """Return the next trial that has a result; that of a dead or timed-out worker is failed.

        Raises:
            StoreError: A worker found the disk full.
            OutOfTime: The deadline has passed; `close` stops what is running.
        """
        while True:
            busy = [worker for worker in self._workers if worker.trial is not None]
            ready = multiprocessing.connection.wait(
                [worker.connection for worker in busy],
                longest_wait(deadline, (worker.started for worker in busy), self._timeout),
            )
            for worker in busy:
                if worker.connection in ready:
                    return self._received(worker)
                if self._timeout is not None and time.monotonic() - worker.started >= self._timeout:
                    return self._stopped(worker, f"stopped after the timeout of {self._timeout:g} s")
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTime

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            _kill(worker)
        self._workers = []

    def _received(self, worker: _Worker) -> Trial:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(timeout=5)
            error = f"its process died with exit code {worker.process.exitcode}"
            return self._stopped(worker, error, worker_died=True)
        worker.trial = None
        return received(message)

    def _stopped(self, worker: _Worker, error: str, *, worker_died: bool = False) -> Trial:
        assert worker.trial is not None
        trial = worker.trial.failed(error, seconds=time.monotonic() - worker.started, worker_died=worker_died)
        self._restarted(worker)
        return trial

    def _restarted(self, worker: _Worker) -> _Worker:
        """Kill a worker and return its replacement."""
        _kill(worker)
        index = self._workers.index(worker)
        self._workers[index] = self._start(index)
        return self._workers[index]

    def _start(self, index: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        limits = _WorkerLimits(self._threads, device_of(self._devices, index), os.getpid())
        arguments = (theirs, self._runner, limits)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            # Python warns about forking a process with threads; the child uses nothing that they may have locked.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise RecipeError(
                    "with several workers on this system the evaluator and the data must be picklable, "
                    f"got {error}; define the evaluator in a module, or use n_jobs=1"
                ) from error
        theirs.close()
        return _Worker(process, ours)


@dataclass(frozen=True)
class _WorkerLimits:
    threads: int
    device: str | None
    parent: int


def _serve(connection: Connection, runner: TrialRunner, limits: _WorkerLimits) -> None:
    """Run trials until the other end of the connection is closed."""
    # Ctrl-C reaches every process of the terminal; the parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    runner.context.directory.close()
    # Objects from before the fork are never garbage here; without this, every collection would scan and copy them.
    gc.freeze()
    if limits.device is not None and ":" in limits.device:
        os.environ["CUDA_VISIBLE_DEVICES"] = limits.device.split(":")[1]
    limit_threads(limits.threads)
    progress.set_enabled(False)
    warnings.filterwarnings("ignore", message=MISSING_DEVICE)  # the parent warns
    threading.Thread(target=_exit_with_parent, args=(limits.parent,), daemon=True).start()
    while True:
        try:
            work = connection.recv()
        except (EOFError, OSError):
            break
        connection.send(run_guarded(runner, *work))
    _exit()


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    _exit()


def _exit() -> None:
    # A fork must not run its parent's atexit handlers, nor wait for threads that were not forked.
    sys.stdout.flush()
    os._exit(0)


def _kill(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.connection.close()


def device_of(devices: tuple[str, ...], index: int) -> str | None:
    """Return the device of a worker, assigned in round-robin order; None is the CPU."""
    return devices[index % len(devices)] if devices else None


def _can_fork(devices: tuple[str, ...]) -> bool:
    uses_cuda = any(existing_device(device) != "cpu" for device in devices)
    return forks_safely() and not uses_cuda
