"""Evaluators whose score is a mean over samples."""

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.tasks.task_evaluator import TaskEvaluator


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
