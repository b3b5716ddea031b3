"""What all evaluators of tasks have in common.

A score that is no mean over samples but has an interval.

Evaluators whose score is a mean over samples.

Runs a model over samples of a book.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import SampleBook
from quantry.memo import fingerprint
from quantry.runtime.sessions import run_session, simulation_session


class TaskEvaluator(ABC):
    """Scores model files on the samples of a book.

    An abstract class because the code below is shared; what a search asks of any evaluator is a protocol of its own.

    Attributes:
        book: The samples.
    """

    book: SampleBook

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all that a score depends on besides the model."""
        return str(fingerprint((type(self).__name__, *self._identity())))

    def prepare(self, float_model: str | Path) -> None:  # noqa: ARG002 - an evaluator may need it
        """Read the samples, as many as are kept, so that processes that are forked afterwards share them.

        Args:
            float_model: The float model of the search.
        """
        self.book.fill()

    @abstractmethod
    def __call__(self, model_path: str | Path) -> float:
        """Return a model's score."""

    @abstractmethod
    def _identity(self) -> tuple[object, ...]:
        """Return all that a score depends on besides the model and the kind of evaluator."""


@dataclass(frozen=True)
class TaskScore:
    """What an evaluator says of a model.

    Attributes:
        value: The score.
        interval: 95 % confidence interval; None where it is not known.
        per_sample: Always None: the score is no mean over samples.
    """

    value: float
    interval: tuple[float, float] | None = None
    per_sample: None = None


class SampleMean(TaskEvaluator):
    """Scores every sample on its own; the score is their mean. A search can race on it."""

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.book)

    def __call__(self, model_path: str | Path) -> float:
        """Return the mean score of a model."""
        return float(self.per_sample(model_path, range(self.size)).mean())

    @abstractmethod
    def per_sample(self, model_path: str | Path, indices: Iterable[int]) -> NDArray[np.float64]:
        """Return the scores of some samples.

        Args:
            model_path: The model.
            indices: Which samples.

        Returns:
            One number for each index, in the order of the indices.
        """


if TYPE_CHECKING:
    import onnxruntime

Outputs = dict[str, NDArray[Any]]


def open_model(model: str | Path, threads: int | None = None) -> "onnxruntime.InferenceSession":
    """Open a session that computes what the graph says, so that a score does not depend on the machine.

    Args:
        model: Path of an ONNX file.
        threads: Threads inside one operator; None leaves the choice to the process.
    """
    return simulation_session(Path(model), threads=threads, interleaved=True)


def run_model(
    model: str | Path, book: SampleBook, indices: Iterable[int], threads: int | None = None
) -> Iterator[tuple[int, Outputs]]:
    """Yield what a model answers to each sample, with the sample's number.

    Args:
        model: Path of an ONNX file.
        book: The samples.
        indices: Which of them.
        threads: Threads inside one operator; None leaves the choice to the process.
    """
    session = open_model(model, threads)
    for index, feeds in book.read(indices):
        yield index, run_session(session, feeds)
