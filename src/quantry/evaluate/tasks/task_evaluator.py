"""Base classes of task evaluators, and running a model over samples."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import Feeds, SampleCache
from quantry.evaluate.arithmetic import Arithmetic, arithmetic_in_force
from quantry.memo import fingerprint
from quantry.runtime.sessions import run_session
from quantry.runtime.threads import thread_count

if TYPE_CHECKING:
    import onnxruntime


class TaskEvaluator(ABC):
    """Scores model files on samples.

    An abstract class because the code below is shared; what a search requires of an evaluator is a separate protocol.

    Attributes:
        samples: The samples.
    """

    samples: SampleCache

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that a score depends on, except the model."""
        return str(fingerprint((type(self).__name__, *self._identity())))

    def prepare(self, float_model: str | Path) -> None:  # noqa: ARG002 - used by subclasses
        """Read as many samples as can be cached, so that forked processes share them.

        Args:
            float_model: The float model of the search.
        """
        self.samples.fill()

    @abstractmethod
    def __call__(self, model_path: str | Path) -> float:
        """Return a model's score."""

    @abstractmethod
    def _identity(self) -> tuple[object, ...]:
        """Return everything that a score depends on, except the model and the class of the evaluator."""


@dataclass(frozen=True)
class TaskScore:
    """A score with an interval that is not a mean over samples.

    Attributes:
        value: The score.
        interval: 95 % confidence interval; None if unknown.
        per_sample: Always None.
    """

    value: float
    interval: tuple[float, float] | None = None
    per_sample: None = None


class SampleMean(TaskEvaluator):
    """Scores every sample separately; the score is their mean. A search can stop trials early on it."""

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def __call__(self, model_path: str | Path) -> float:
        """Return the mean score of a model."""
        return float(self.per_sample(model_path, range(self.size)).mean())

    @abstractmethod
    def per_sample(self, model_path: str | Path, indices: Iterable[int]) -> NDArray[np.float64]:
        """Return the scores of some samples.

        Args:
            model_path: The model.
            indices: Indices of the samples.

        Returns:
            One number per index, in the order of the indices.
        """


Outputs = dict[str, NDArray[Any]]


# Samples that run at the same time, so that a machine with many cores does not need memory for as many samples.
_MOST_TOGETHER = 4


def run_model(
    model: str | Path, samples: SampleCache, indices: Iterable[int], threads: int | None = None
) -> Iterator[tuple[int, Outputs]]:
    """Yield a model's outputs for each sample, with the sample's index, in the arithmetic in force.

    Args:
        model: Path of an ONNX file.
        samples: The samples.
        indices: Their indices.
        threads: Threads inside one operator; None divides the threads of the process among several samples.
    """
    arithmetic = arithmetic_in_force()
    together = samples_together(threads, arithmetic)
    session = arithmetic.open(model, threads_of_each(together, threads))
    for index, _, outputs in run_samples(session, samples.read(indices), together):
        yield index, outputs


def samples_together(threads: int | None, arithmetic: Arithmetic) -> int:
    """Return how many samples run at the same time.

    Two threads inside every operator of a small model wait for each other half of the time; two samples on one thread
    each do not, and have the same results.

    Args:
        threads: Threads inside one operator, if the user has set them; then samples run one by one.
        arithmetic: What computes the model.
    """
    return 1 if threads is not None or arithmetic.one_by_one else min(thread_count(), _MOST_TOGETHER)


def threads_of_each(together: int, threads: int | None) -> int | None:
    """Return the threads inside one operator.

    Args:
        together: How many samples run at the same time.
        threads: What the user has set; None is nothing.
    """
    return threads if together == 1 else thread_count() // together


def run_samples(
    session: "onnxruntime.InferenceSession", samples: Iterable[tuple[int, Feeds]], together: int
) -> Iterator[tuple[int, Feeds, Outputs]]:
    """Yield each sample with its index and a model's outputs, in the order of the samples.

    Args:
        session: A session of the model.
        samples: Indices and inputs.
        together: How many samples run at the same time.
    """
    if together == 1:
        for index, feeds in samples:
            yield index, feeds, run_session(session, feeds)
        return
    with ThreadPoolExecutor(together) as pool:
        started: deque[tuple[int, Feeds, Future[Outputs]]] = deque()
        for index, feeds in samples:
            started.append((index, feeds, pool.submit(run_session, session, feeds)))
            # One more than can run, so that no thread waits while the caller scores a sample.
            if len(started) > together:
                yield _finished(started)
        while started:
            yield _finished(started)


def _finished(started: "deque[tuple[int, Feeds, Future[Outputs]]]") -> tuple[int, Feeds, Outputs]:
    index, feeds, outputs = started.popleft()
    return index, feeds, outputs.result()
