"""What all evaluators of tasks have in common."""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path

from quantry.evaluate.tasks.sample_book import SampleBook
from quantry.memo import fingerprint


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
