"""Compare the latency of the float and the quantized model, robust against other load on the machine."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantry.errors import RecipeError
from quantry.runtime.devices import machine_name

if TYPE_CHECKING:
    import onnxruntime

_WARM_UP_RUNS = 5


@dataclass(frozen=True)
class Latency:
    """Times of one run of each model, measured in pairs.

    Attributes:
        float_ms: Median time of the float model in milliseconds.
        quantized_ms: Median time of the quantized model in milliseconds.
        ratio: Median over the pairs of quantized time divided by float time; below 1 the quantized model is faster.
            The two runs of a pair follow each other directly, so load that slows down both does not change the ratio.
        runs: Number of timed pairs.
        float_quartiles: First and third quartile of the float times in milliseconds.
        quantized_quartiles: First and third quartile of the quantized times in milliseconds.
        ratio_quartiles: First and third quartile of the pairs' ratios.
        machine: The processor and the number of cores.
    """

    float_ms: float
    quantized_ms: float
    ratio: float
    runs: int
    float_quartiles: tuple[float, float]
    quantized_quartiles: tuple[float, float]
    ratio_quartiles: tuple[float, float]
    machine: str

    @property
    def speedup(self) -> float:
        """How many times faster the quantized model is: 1 / ratio."""
        return 1 / self.ratio


def measure_latency(
    reference: "onnxruntime.InferenceSession",
    quantized: "onnxruntime.InferenceSession",
    feeds: Mapping[str, NDArray[Any]],
    runs: int,
) -> Latency:
    """Time two sessions alternately on the same input.

    Args:
        reference: Session of the float model.
        quantized: Session of the quantized model. Open both with ``interleaved=True``.
        feeds: Input names to arrays.
        runs: Number of timed pairs, after a few warm-up runs.

    Returns:
        Medians and quartiles.

    Raises:
        RecipeError: The number of runs is not positive.
    """
    if runs < 1:
        raise RecipeError(f"the number of timed runs must be at least 1, got {runs!r}; in measure_latency")
    inputs = dict(feeds)

    def run_float() -> None:
        reference.run(None, inputs)

    def run_quantized() -> None:
        quantized.run(None, inputs)

    pairs = [_timed_pair(run_float, run_quantized, float_first=index % 2 == 0) for index in range(_WARM_UP_RUNS + runs)]
    return summarize_pairs(np.array(pairs[_WARM_UP_RUNS:]))


def summarize_pairs(milliseconds: NDArray[np.float64]) -> Latency:
    """Return medians and quartiles of timed pairs.

    Args:
        milliseconds: Positive times, shape (pairs, 2): float, quantized.
    """
    times = np.column_stack([milliseconds, milliseconds[:, 1] / milliseconds[:, 0]])
    low, (float_ms, quantized_ms, ratio), high = np.quantile(times, (0.25, 0.5, 0.75), axis=0).tolist()
    float_quartiles, quantized_quartiles, ratio_quartiles = zip(low, high, strict=True)
    return Latency(
        float_ms=float_ms,
        quantized_ms=quantized_ms,
        ratio=ratio,
        runs=len(times),
        float_quartiles=float_quartiles,
        quantized_quartiles=quantized_quartiles,
        ratio_quartiles=ratio_quartiles,
        machine=machine_name(),
    )


def _timed_pair(
    run_float: Callable[[], None], run_quantized: Callable[[], None], *, float_first: bool
) -> tuple[float, float]:
    """Return the milliseconds of both; the order alternates, because the first run finds colder caches."""
    if float_first:
        float_ms = _milliseconds(run_float)
        return float_ms, _milliseconds(run_quantized)
    quantized_ms = _milliseconds(run_quantized)
    return _milliseconds(run_float), quantized_ms


def _milliseconds(run: Callable[[], None]) -> float:
    started = time.perf_counter_ns()
    run()
    # A clock with low resolution may not have advanced, and a ratio needs a positive number.
    return max(time.perf_counter_ns() - started, 1) / 1e6
