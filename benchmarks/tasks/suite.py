"""Preparing and scoring the models of the shared data."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

from benchmarks.accuracy.suites import find_suite
from benchmarks.workloads.sample_folder import write_samples


def prepare(suite: str, folder: str, count: int | None = None) -> Callable[[], dict[str, Any]]:
    """Export the model where needed and write samples: all calibration samples, or ``count`` for measuring time."""
    found = find_suite(suite)

    def job() -> dict[str, Any]:
        samples = (
            found.calibration() if count is None else islice(chain(found.calibration(), found.more_samples()), count)
        )
        written = write_samples(Path(folder), samples)
        return {"model": str(found.model()), "count": len(list(written.glob("*.npz")))}

    return job


def prepare_held_out(suite: str, folder: str, count: int, every: int) -> Callable[[], dict[str, Any]]:
    """Write samples that are not among the calibration samples: ``count`` of them, every n-th.

    Raises:
        ValueError: The suite has fewer.
    """
    found = find_suite(suite)

    def job() -> dict[str, Any]:
        written = write_samples(Path(folder), islice(found.more_samples(), 0, count * every, every))
        number = len(list(written.glob("*.npz")))
        if number < count:
            raise ValueError(f"{count} held-out samples wanted, suite {suite} has {number}")
        return {"count": number}

    return job


def score(suite: str, model: str, limit: int | None = None) -> Callable[[], dict[str, Any]]:
    """Evaluate a model on held-out samples."""
    found = find_suite(suite)
    return lambda: asdict(found.score(Path(model), limit))
