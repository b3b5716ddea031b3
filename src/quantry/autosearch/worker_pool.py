"""Runs trials in processes of their own."""

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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from quantry.autosearch.outcome import Outcome, TrialTask
from quantry.autosearch.setting import Place, Setting
from quantry.autosearch.single_flight import SingleFlightStore
from quantry.autosearch.time_limit import OutOfTime, longest_wait
from quantry.autosearch.trial_runner import TrialRunner
from quantry.errors import RecipeError, StoreError
from quantry.runtime.threads import limit_threads

_ORPHAN_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class Staffing:
    """How many workers, and what each may take.

    Attributes:
        jobs: How many processes.
        threads: Threads of each in one operator.
        timeout: Seconds after which a trial is stopped; None never.
        devices: What the workers take in turn, such as "cuda:1"; empty is the CPU.
    """

    jobs: int
    threads: int = 1
    timeout: float | None = None
    devices: tuple[str, ...] = ()

    def device(self, index: int) -> str | None:
        """Return what a worker takes; None is the CPU."""
        return self.devices[index % len(self.devices)] if self.devices else None


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    task: TrialTask | None = None
    begun: float = 0.0


class WorkerPool:
    """An `Executor` of several processes that share a store.

    Where the system can fork, workers are forks of this process, so that an evaluator may be any callable; elsewhere,
    and with CUDA devices, they are started anew and the evaluator must be one that can be pickled. A worker that dies
    or runs out of time is replaced. Workers whose parent dies end by themselves.

    Args:
        setting: What all trials have in common.
        place: Where models and results go.
        staffing: How many workers.
    """

    isolated = True

    def __init__(self, setting: Setting, place: Place, staffing: Staffing) -> None:
        self.capacity = staffing.jobs
        self._staffing = staffing
        shared = SingleFlightStore(place.store, place.directory.path / "stages.lock")
        self._runner = TrialRunner(setting, Place(place.directory, shared))
        self._context = multiprocessing.get_context("fork" if _can_fork(staffing) else "spawn")
        self._workers = [self._start(index) for index in range(staffing.jobs)]

    def submit(self, task: TrialTask) -> None:
        """Give a task to an idle worker."""
        worker = next(worker for worker in self._workers if worker.task is None)
        try:
            worker.connection.send(task)
        except OSError:  # it died while it had nothing to do, which is no trial's fault
            worker = self._renewed(worker)
            worker.connection.send(task)
        worker.task, worker.begun = task, time.monotonic()

    def wait(self, deadline: float | None = None) -> Outcome:
        """Return the first outcome that arrives; a worker that died or ran out of time has one too.

        Raises:
            StoreError: A worker found the disk full.
            OutOfTime: None arrived until the deadline; `close` ends what is running.
        """
        while True:
            busy = [worker for worker in self._workers if worker.task is not None]
            ready = multiprocessing.connection.wait(
                [worker.connection for worker in busy],
                longest_wait(deadline, (worker.begun for worker in busy), self._staffing.timeout),
            )
            for worker in busy:
                if worker.connection in ready:
                    return self._received(worker)
                if self._is_overdue(worker):
                    return self._replace(worker, f"stopped after the limit of {self._staffing.timeout:g} s")
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTime

    def close(self) -> None:
        """End all workers, whatever they are at."""
        for worker in self._workers:
            _end(worker)
        self._workers = []

    def _received(self, worker: _Worker) -> Outcome:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(timeout=5)
            return self._replace(worker, f"its process died with exit code {worker.process.exitcode}", died=True)
        worker.task = None
        if isinstance(message, StoreError):
            raise message
        assert isinstance(message, Outcome)
        return message

    def _replace(self, worker: _Worker, error: str, *, died: bool = False) -> Outcome:
        assert worker.task is not None
        outcome = Outcome(worker.task.number, "failed", error=error, seconds=time.monotonic() - worker.begun, died=died)
        self._renewed(worker)
        return outcome

    def _renewed(self, worker: _Worker) -> _Worker:
        """End a worker and return the one that takes its place."""
        _end(worker)
        index = self._workers.index(worker)
        self._workers[index] = self._start(index)
        return self._workers[index]

    def _is_overdue(self, worker: _Worker) -> bool:
        timeout = self._staffing.timeout
        return timeout is not None and time.monotonic() - worker.begun >= timeout

    def _start(self, index: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        limits = _Limits(self._staffing.threads, self._staffing.device(index), os.getpid())
        arguments = (theirs, self._runner, limits)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            # Python warns of forking beside threads; the child uses none of what they may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise RecipeError(
                    "with several workers on this system the evaluator and the data must be ones that pickle can "
                    f"write, got {error}; define the evaluator in a module, or use n_jobs=1"
                ) from error
        theirs.close()
        return _Worker(process, ours)


@dataclass(frozen=True)
class _Limits:
    threads: int
    device: str | None
    parent: int


def _serve(connection: Connection, runner: TrialRunner, limits: _Limits) -> None:
    """Run tasks until the other end is gone."""
    # Ctrl-C reaches every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    runner.place.directory.close()
    # What was there before the fork is never garbage here; looking through it again and again takes time.
    gc.freeze()
    if limits.device is not None and ":" in limits.device:
        os.environ["CUDA_VISIBLE_DEVICES"] = limits.device.split(":")[1]
    limit_threads(limits.threads)
    threading.Thread(target=_watch_parent, args=(limits.parent,), daemon=True).start()
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            break
        connection.send(_guarded(runner, task))
    _leave()


def _guarded(runner: TrialRunner, task: TrialTask) -> Any:
    try:
        return runner.run(task)
    except StoreError as error:
        return StoreError(str(error))


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_ORPHAN_CHECK_SECONDS)
    _leave()


def _leave() -> None:
    # A fork must not run what its parent registered for the end, nor wait for threads that it never had.
    sys.stdout.flush()
    os._exit(0)


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.connection.close()


def _can_fork(staffing: Staffing) -> bool:
    uses_cuda = any(not device.startswith("cpu") for device in staffing.devices)
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin" and not uses_cuda
