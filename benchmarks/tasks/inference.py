"""Plain inference in onnxruntime."""

import multiprocessing
import multiprocessing.synchronize
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.tasks.samples import SampleReader

_WARM_UP = 5


def infer(model: str, samples: str, count: int, threads: int = 2, **_: Any) -> Callable[[], dict[str, Any]]:
    """Time reading and running every sample once; opening the model is not timed."""
    return _run_all(open_session(model, threads), samples, count)


def evaluate(
    model: str, samples: str, count: int, threads: int = 2, target: str = "", **_: Any
) -> Callable[[], dict[str, Any]]:
    """Time reading and running every sample in the session that a search for a target evaluates in."""
    from quantry.evaluate.arithmetic import arithmetic_in_force
    from quantry.targets import computed_for

    with computed_for(target):
        return _run_all(arithmetic_in_force().open(model, threads), samples, count)


def _run_all(session: Any, samples: str, count: int) -> Callable[[], dict[str, Any]]:
    def job() -> dict[str, Any]:
        reader = SampleReader(samples, count)
        while (sample := reader.get_next()) is not None:
            session.run(None, sample)
        return {"samples": count}

    return job


def run_repeatedly(model: str, samples: str, runs: int, threads: int = 2, **_: Any) -> Callable[[], dict[str, Any]]:
    """Time many runs of one sample; opening and warming up are not timed."""
    session = open_session(model, threads)
    sample = SampleReader(samples, 1).get_next()
    for _warm in range(_WARM_UP):
        session.run(None, sample)

    def job() -> dict[str, Any]:
        times = []
        for _run in range(runs):
            started = time.perf_counter()
            session.run(None, sample)
            times.append(time.perf_counter() - started)
        return {"milliseconds": round(median(times) * 1000, 3)}

    return job


def run_in_processes(model: str, samples: str, runs: int, processes: int, **_: Any) -> Callable[[], dict[str, Any]]:
    """Time a number of runs in total, in processes with one thread each that have opened the model before."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1)
    arguments = (model, samples, runs // processes, ready)
    workers = [context.Process(target=_run_when_all_are_ready, args=arguments) for _worker in range(processes)]
    for worker in workers:
        worker.start()

    def job() -> dict[str, Any]:
        ready.wait()
        for worker in workers:
            worker.join()
        return {"runs": runs}

    return job


def _run_when_all_are_ready(model: str, samples: str, runs: int, ready: multiprocessing.synchronize.Barrier) -> None:
    session = open_session(model, threads=1)
    sample = SampleReader(samples, 1).get_next()
    session.run(None, sample)
    ready.wait()
    for _run in range(runs):
        session.run(None, sample)


def open_session(model: str, threads: int) -> Any:
    """Return a session of onnxruntime on the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
