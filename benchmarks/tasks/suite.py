"""Preparing and scoring the models of the shared data."""

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

from benchmarks.accuracy.suites import Suite, find_suite
from benchmarks.workloads.sample_folder import write_samples

# Samples whose outputs are compared, and their distance, because images are sorted by class.
_COMPARED, _EVERY = 100, 3


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
    """Evaluate a model on held-out samples: the suite's metric, and how close its outputs are to the float model's."""
    found = find_suite(suite)

    def job() -> dict[str, Any]:
        facts = asdict(found.score(Path(model), limit))
        facts["details"] |= closeness(found, Path(model))
        return facts

    return job


def closeness(suite: Suite, model: Path) -> dict[str, float]:
    """Return decibels and agreement of decisions with the float model; empty for the float model itself.

    Args:
        suite: Model and data.
        model: The quantized model.
    """
    from quantry.data.open_data import calibration_data
    from quantry.data.sample_cache import SampleCache
    from quantry.evaluate.tasks import FloatAgreement
    from quantry.graph.float_model import input_signatures
    from quantry.graph.load import model_source

    reference = suite.model()
    if model == reference:
        return {}
    samples = [
        {name: value.astype("float32") if value.dtype.kind == "u" else value for name, value in sample.items()}
        for sample in islice(suite.more_samples(), 0, _COMPARED * _EVERY, _EVERY)
    ]
    data = calibration_data(samples, input_signatures(model_source(reference).load()))
    evaluator = FloatAgreement(reference, SampleCache(data))
    evaluator.per_sample(model, range(evaluator.size))
    measured = evaluator.measured[model]
    agreement = measured.mean_agreement
    return {"dB": measured.mean_decibels, **({} if agreement is None else {"agreement": agreement})}


def compare(suite: str, model: str) -> Callable[[], dict[str, Any]]:
    """Compare a model's outputs with the float model's, without labels."""
    found = find_suite(suite)
    return lambda: dict(closeness(found, Path(model)))
