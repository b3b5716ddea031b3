"""Spearman's rank correlation between a model's answers and numbers that people gave."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError
from quantry.evaluate.tasks.task_evaluator import TaskEvaluator, run_model


@dataclass(frozen=True, eq=False)
class RankCorrelation(TaskEvaluator):
    """Spearman's rank correlation with given numbers.

    A model with one number per sample is compared directly. A model with a vector per sample, such as a sentence
    embedding, is given pairs: samples 0 and 1 are the first pair, 2 and 3 the second; their cosine is compared.

    Attributes:
        samples: The samples.
        targets: The given numbers, float64 [samples] or, for vectors, [samples / 2].
        output: Name of the output; None uses the first.
        threads: Threads inside one operator; None uses the default of the process.

    Example:
        >>> evaluator = RankCorrelation(SampleCache(data), scores)  # doctest: +SKIP
        >>> evaluator("model.int8.onnx")  # doctest: +SKIP
        0.819
    """

    samples: SampleCache
    targets: NDArray[np.float64]
    output: str | None = None
    threads: int | None = None
    direction: ClassVar[str] = "maximize"
    name: ClassVar[str] = "spearman"

    def __post_init__(self) -> None:
        targets = np.array(self.targets, np.float64).ravel()
        if len(targets) < 2 or not np.isfinite(targets).all():
            raise DataError(f"RankCorrelation.targets must be at least 2 finite numbers, got {targets[:5].tolist()}")
        object.__setattr__(self, "targets", targets)

    def __call__(self, model_path: str | Path) -> float:
        """Return the rank correlation of a model, -1 to 1; 0 if all its answers are equal or not finite."""
        indices = range(len(self.samples))
        outputs = dict(run_model(model_path, self.samples, indices, self.threads))
        name = self.output if self.output is not None else next(iter(outputs[0]))
        if name not in outputs[0]:
            raise DataError(f"RankCorrelation.output must be one of {list(outputs[0])}, got {name!r}")
        rows = np.concatenate([outputs[index][name].reshape(-1, outputs[index][name].shape[-1]) for index in indices])
        answers = self._answers(rows.astype(np.float64))
        if not np.isfinite(answers).all() or np.ptp(answers) == 0:
            return 0.0
        return float(np.corrcoef(ranks(answers), ranks(self.targets))[0, 1])

    def _answers(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        count = len(self.targets)
        if rows.shape[1] == 1 and len(rows) == count:
            return rows[:, 0]
        if rows.shape[1] > 1 and len(rows) == 2 * count:
            norms = np.linalg.norm(rows, axis=1)
            # A zero vector has no direction; its cosine with anything counts as 0.
            product = np.maximum(norms[0::2] * norms[1::2], np.finfo(np.float64).tiny)
            return np.asarray((rows[0::2] * rows[1::2]).sum(axis=1) / product)
        raise DataError(
            f"there must be one target per sample if the model returns one number, or one per two samples if it "
            f"returns a vector, got {count} targets, {len(rows)} samples and {rows.shape[1]} numbers per sample; in "
            "RankCorrelation"
        )

    def _identity(self) -> tuple[object, ...]:
        return self.samples.data, self.targets, self.output


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of their ranks.

    Example:
        >>> ranks(np.array([5.0, 1.0, 5.0])).tolist()
        [1.5, 0.0, 1.5]
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middles: NDArray[np.float64] = (2 * ends - counts - 1) / 2
    return middles[place]


def number_labels(path: str | Path) -> NDArray[np.float64]:
    """Read one number per sample, in the order of the samples.

    Args:
        path: A ``.npy`` array, a ``.json`` list, or a ``.csv`` or ``.txt`` file with the number at the end of each
            line; a first line without a number is a header.

    Raises:
        DataError: The file cannot be read, or a line has no number.
    """
    file = Path(path)
    try:
        if file.suffix.lower() == ".npy":
            return np.asarray(np.load(file, allow_pickle=False), np.float64).ravel()
        with file.open(encoding="utf-8", newline="") as text:
            if file.suffix.lower() == ".json":
                return np.array(json.load(text), np.float64).ravel()
            # Lines of a .txt file are separated by blanks, those of a .csv file by commas.
            rows = [row if file.suffix.lower() == ".csv" else " ".join(row).split() for row in csv.reader(text) if row]
        return np.array([float(row[-1]) for row in (rows[1:] if rows and not _is_number(rows[0][-1]) else rows)])
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"labels must be a readable file with one number per sample, got {error}; in {path}") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
