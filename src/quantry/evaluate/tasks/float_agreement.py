"""Label-free closeness to the float model: decibels of the outputs and agreement of decisions."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.decisions import agreement, output_decibels, score_rows, tied
from quantry.evaluate.metrics.metric import Pair
from quantry.evaluate.tasks.output_distance import OutputComparison
from quantry.graph.load import model_source

LEAST_DB, MOST_DB = -20.0, 80.0
"""Limits of one output's decibels: beyond them nothing changes for a user, and one output must not hide the others."""


@dataclass(frozen=True, eq=False)
class Closeness:
    """How close a model is to the float model, sample by sample.

    Attributes:
        decibels: Signal-to-noise ratio of the outputs, mean over outputs, shape (n,).
        agreement: Share of decisions that both models share, 0 to 1, shape (n,); NaN if outputs hold no decision.
        ties: Share of rows whose highest score is shared by several classes in this model but not in the float model,
            shape (n,); NaN if no output has class scores.
    """

    decibels: NDArray[np.float64]
    agreement: NDArray[np.float64]
    ties: NDArray[np.float64]

    @classmethod
    def of(cls, samples: Iterable[list[Pair | None]]) -> "Closeness":
        """Compare the outputs of samples.

        Args:
            samples: For each sample the outputs of both models; None where they cannot be compared.
        """
        rows = np.array([_measured(pairs) for pairs in samples], dtype=np.float64).reshape(-1, 3)
        return cls(*rows.T)

    @property
    def mean_decibels(self) -> float:
        """The mean over samples."""
        return float(self.decibels.mean())

    @property
    def mean_agreement(self) -> float | None:
        """The mean over samples; None if outputs hold no decision."""
        return _mean(self.agreement)

    @property
    def mean_ties(self) -> float | None:
        """The mean over samples; None if no output has class scores."""
        return _mean(self.ties)


@dataclass(frozen=True, eq=False)
class FloatAgreement(OutputComparison):
    """Closeness to the float model in dB, averaged over samples; needs no labels.

    Every output counts alike, and so does every channel of a map such as a detector's output: otherwise the largest
    values, often the coordinates of boxes, would decide alone. `measured` also holds the agreement of decisions.

    Attributes:
        measured: What was measured on all samples, by path of the model.

    Example:
        >>> evaluator = FloatAgreement("model.onnx", SampleCache(data))  # doctest: +SKIP
        >>> evaluator("model.int8.onnx")  # doctest: +SKIP
        24.8
    """

    direction: ClassVar[str] = "maximize"
    name: ClassVar[str] = "dB"
    reference_score: ClassVar[float] = MOST_DB
    measured: dict[Path, Closeness] = field(default_factory=dict, repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, object]:
        """Drop what was measured and cached: a spawned process measures its own models."""
        return {**super().__getstate__(), "measured": {}}

    def per_sample(self, model_path: str | Path, indices: Iterable[int]) -> NDArray[np.float64]:
        """Return the decibels of each sample.

        Args:
            model_path: The model.
            indices: Indices of the samples.

        Returns:
            One number per index, in the order of the indices.

        Raises:
            ModelError: The model has other outputs than the float model.
        """
        wanted = list(indices)
        if self.is_reference(model_path):
            return np.full(len(wanted), self.reference_score)
        found = dict(self.pairs(model_path, wanted))
        closeness = Closeness.of(found[index] for index in wanted)
        if wanted == list(range(self.size)):
            self.measured[Path(model_path)] = closeness
        return closeness.decibels

    def _identity(self) -> tuple[object, ...]:
        return model_source(self.reference), self.samples.data


def _measured(pairs: list[Pair | None]) -> tuple[float, float, float]:
    """Return decibels, agreement and ties of one sample."""
    decibels = [LEAST_DB if pair is None else min(max(output_decibels(pair), LEAST_DB), MOST_DB) for pair in pairs]
    agreed = [0.0 if pair is None else agreement(pair) for pair in pairs]
    ties = [None if pair is None else _new_ties(pair) for pair in pairs]
    return _average(decibels), _average(agreed), _average(ties)


def _new_ties(pair: Pair) -> float | None:
    ours, theirs = score_rows(pair.reference), score_rows(pair.quantized)
    return None if ours is None or theirs is None else float((tied(theirs) & ~tied(ours)).mean())


def _average(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else np.nan


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
