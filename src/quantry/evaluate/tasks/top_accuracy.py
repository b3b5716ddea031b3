"""Top-1 and top-k accuracy of a classifier."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError, RecipeError
from quantry.evaluate.tasks.task_evaluator import Outputs, SampleMean, run_model


@dataclass(frozen=True, eq=False)
class TopAccuracy(SampleMean):
    """The fraction of samples whose class is among the ``k`` highest scores of a classifier.

    Attributes:
        samples: The samples.
        labels: The class of each sample, int64 [samples] or, if a sample is a batch, [samples, batch].
        k: 1 for top-1, 5 for top-5.
        output: Name of the output with scores [batch, classes]; None uses the first.
        threads: Threads inside one operator; None uses the default of the process.

    Example:
        >>> evaluator = TopAccuracy(SampleCache(data), labels)  # doctest: +SKIP
        >>> evaluator("model.int8.onnx")  # doctest: +SKIP
        0.734
    """

    samples: SampleCache
    labels: NDArray[np.int64]
    k: int = 1
    output: str | None = None
    threads: int | None = None
    direction: ClassVar[str] = "maximize"

    def __post_init__(self) -> None:
        labels = np.array(self.labels)
        if not np.issubdtype(labels.dtype, np.integer):
            raise DataError(f"labels must be integers, got {labels.dtype}; in TopAccuracy.labels")
        if len(labels) != len(self.samples):
            raise DataError(
                f"there must be one label per sample, got {len(labels)} labels and {len(self.samples)} samples; in "
                "TopAccuracy"
            )
        if self.k < 1:
            raise RecipeError(f"TopAccuracy.k must be at least 1, got {self.k!r}")
        object.__setattr__(self, "labels", labels.astype(np.int64))

    @property
    def name(self) -> str:
        """Name of the score in tables."""
        return f"top-{self.k}"

    def per_sample(self, model_path: str | Path, indices: Iterable[int]) -> NDArray[np.float64]:
        """Return 1 for each sample that a model classifies correctly and 0 for the others; the fraction for batches.

        Args:
            model_path: The model.
            indices: Indices of the samples.

        Returns:
            One number per index, in the order of the indices.
        """
        wanted = list(indices)
        scores = {
            index: self._right(outputs, index)
            for index, outputs in run_model(model_path, self.samples, wanted, self.threads)
        }
        return np.array([scores[index] for index in wanted], dtype=np.float64)

    def _identity(self) -> tuple[object, ...]:
        return self.samples.data, self.labels, self.k, self.output

    def _right(self, outputs: Outputs, index: int) -> float:
        scores = self._scores(outputs)
        labels = np.atleast_1d(self.labels[index])
        if len(scores) != len(labels):
            raise DataError(
                f"there must be one label per row of scores, got {len(labels)} labels for {len(scores)} rows; "
                f"sample {index} of TopAccuracy"
            )
        if labels.min() < 0 or labels.max() >= scores.shape[1]:
            raise DataError(
                f"labels must be classes of the model, 0 to {scores.shape[1] - 1}, got "
                f"{labels.tolist()}; sample {index} of TopAccuracy"
            )
        own = scores[np.arange(len(scores)), labels]
        # Ties and NaN count as wrong: a model that returns the same score for every class knows nothing.
        higher = (scores >= own[:, None]).sum(axis=1) - 1
        right = np.isfinite(own) & (higher < self.k)
        return float(right.mean())

    def _scores(self, outputs: Outputs) -> NDArray[Any]:
        name = self.output if self.output is not None else next(iter(outputs))
        if name not in outputs:
            raise DataError(f"TopAccuracy.output must be one of {list(outputs)}, got {name!r}")
        scores = outputs[name]
        return scores.reshape(scores.shape[0] if scores.ndim > 1 else 1, -1)
