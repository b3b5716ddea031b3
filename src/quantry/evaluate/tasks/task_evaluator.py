"""Base classes of task evaluators, and running a model over samples."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import SampleCache
from quantry.evaluate.evaluation_session import evaluation_session
from quantry.memo import fingerprint
from quantry.runtime.sessions import run_session


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


def run_model(
    model: str | Path, samples: SampleCache, indices: Iterable[int], threads: int | None = None
) -> Iterator[tuple[int, Outputs]]:
    """Yield a model's outputs for each sample, with the sample's index.

    Args:
        model: Path of an ONNX file.
        samples: The samples.
        indices: Their indices.
        threads: Threads inside one operator; None uses the default of the process.
    """
    session = evaluation_session(model, threads)
    for index, feeds in samples.read(indices):
        yield index, run_session(session, feeds)
