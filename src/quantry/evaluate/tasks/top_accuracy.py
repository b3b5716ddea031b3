"""Top-1 and top-k accuracy of a classifier."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError, RecipeError
from quantry.evaluate.decisions import ranks, tied
from quantry.evaluate.tasks.task_evaluator import Outputs, SampleMean, run_model

NOTABLE_TIES = 0.01
"""Share of samples with equal highest scores above which a note reports them."""

# Enough to estimate a share of a few percent; the search has evaluated the model already, so this must stay cheap.
_TIE_SAMPLES = 200


@dataclass(frozen=True, eq=False)
class TopAccuracy(SampleMean):
    """The fraction of samples whose class is among the ``k`` highest scores of a classifier.

    Of several equal scores the first index wins, as in the ``argmax`` of a deployed model. Equal highest scores are a
    sign of coarse outputs, so `tie_share` measures them and `notes` reports them. NaN counts as wrong.

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

    def tie_share(self, model_path: str | Path) -> float:
        """Return the fraction of samples in which several classes share the highest score of a model.

        Args:
            model_path: The model.
        """
        # Evenly spread, because a folder may be sorted by class.
        chosen = np.unique(np.linspace(0, self.size - 1, min(self.size, _TIE_SAMPLES)).round().astype(int))
        runs = run_model(model_path, self.samples, chosen.tolist(), self.threads)
        return float(np.mean([tied(self._scores(outputs)).mean() for _, outputs in runs]))

    def notes(self, model_path: str | Path) -> tuple[str, ...]:
        """Return what a user should know about a model's scores: how often the highest score is not unique.

        Args:
            model_path: The model.
        """
        share = self.tie_share(model_path)
        if share < NOTABLE_TIES:
            return ()
        note = (
            f"several classes share the highest score in {share:.0%} of the samples, and the first of them counts; the "
            "outputs are too coarse: keep the last layers in float or give them more bits"
        )
        return (note,)

    def _identity(self) -> tuple[object, ...]:
        # Scores from before the first of equal scores counted must not be mixed with new ones.
        return self.samples.data, self.labels, self.k, self.output, "first of equal scores"

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
        return float((ranks(scores, labels) < self.k).mean())

    def _scores(self, outputs: Outputs) -> NDArray[Any]:
        name = self.output if self.output is not None else next(iter(outputs))
        if name not in outputs:
            raise DataError(f"TopAccuracy.output must be one of {list(outputs)}, got {name!r}")
        scores = outputs[name]
        return scores.reshape(scores.shape[0] if scores.ndim > 1 else 1, -1)
