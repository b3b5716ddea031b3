"""The result of evaluating one model, and the resampling for its confidence interval."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Run = Callable[[Any], Any]
"""Runs a model: a batch in, its first output out."""

_SEED = 20260101
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Score:
    """A metric on held-out data.

    Attributes:
        value: The metric on all samples; larger is better.
        count: Number of samples.
        replicates: The metric on bootstrap resamples. The k-th resample has the same samples for every model of a
            suite, so that differences between models can be taken replicate by replicate.
        details: Further numbers that the suite's own script tells.
    """

    value: float
    count: int
    replicates: tuple[float, ...]
    details: dict[str, float]


def resamples(count: int, number: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the same ``number`` index sets for every model with ``count`` samples."""
    rng = np.random.default_rng(_SEED)
    for _ in range(number):
        yield rng.integers(0, count, count)


def bootstrap(count: int, number: int, metric: Callable[[npt.NDArray[np.int64]], float]) -> tuple[float, ...]:
    """Return the metric of each resample."""
    return tuple(float(metric(indices)) for indices in resamples(count, number))


def interval(replicates: tuple[float, ...] | list[float]) -> tuple[float, float]:
    """Return the percentile interval at 95 %."""
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(np.asarray(replicates), (tail, 1 - tail))
    return float(low), float(high)


def paired_interval(replicates: list[float], reference: list[float]) -> tuple[float, float]:
    """Return the interval of the difference to another model on the same resamples."""
    return interval([a - b for a, b in zip(replicates, reference, strict=True)])
