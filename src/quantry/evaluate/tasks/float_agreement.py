"""Label-free closeness to the float model: decibels of the outputs and agreement of decisions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.arithmetic import Arithmetic, arithmetic_in_force
from quantry.evaluate.decisions import (
    MapPart,
    agreement,
    map_agreement,
    map_decibels,
    output_decibels,
    score_rows,
    tied,
)
from quantry.evaluate.metrics.metric import Pair
from quantry.evaluate.output_layout import PLAIN_LAYOUT, OutputLayout, output_layout
from quantry.evaluate.stage import machine_environment
from quantry.evaluate.tasks.output_distance import OutputComparison
from quantry.graph.load import model_source
from quantry.memo import Blob, Digest, Memo, fingerprint, stage

LEAST_DB, MOST_DB = -20.0, 80.0
"""Limits of one output's decibels: beyond them nothing changes for a user, and one output must not hide the others."""


@dataclass(frozen=True, eq=False)
class Closeness:
    """How close a model is to the float model, sample by sample.

    Attributes:
        decibels: Signal-to-noise ratio of the outputs, mean over outputs and their parts, shape (n,).
        agreement: Share of decisions that both models share, 0 to 1, shape (n,); NaN if outputs hold no decision.
        ties: Share of rows whose highest score is shared by several classes in this model but not in the float model,
            shape (n,); NaN if no output has class scores.
    """

    decibels: NDArray[np.float64]
    agreement: NDArray[np.float64]
    ties: NDArray[np.float64]

    @classmethod
    def of(cls, samples: Iterable[Mapping[str, Pair | None]], layout: OutputLayout = PLAIN_LAYOUT) -> "Closeness":
        """Compare the outputs of samples.

        Args:
            samples: For each sample the outputs of both models, by name; None where they cannot be compared.
            layout: What the axes of the outputs mean.
        """
        rows = np.array([_measured(pairs, layout) for pairs in samples], dtype=np.float64).reshape(-1, 3)
        return cls(*rows.T)

    @classmethod
    def joined(cls, parts: Iterable["Closeness"]) -> "Closeness":
        """Return what was measured on several sets of samples as one.

        Args:
            parts: What was measured on each.
        """
        columns = zip(*((one.decibels, one.agreement, one.ties) for one in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def to_blob(self) -> Blob:
        """Return the stored form."""
        return Blob(arrays={name: getattr(self, name) for name in ("decibels", "agreement", "ties")})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        return cls(*(blob.arrays[name] for name in ("decibels", "agreement", "ties")))

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

    Every output counts alike, also those that the model joins into one tensor as its last step, such as boxes and
    scores, and so does every channel of a map: otherwise the largest values, often the coordinates of boxes, would
    decide alone. A detector is compared where it finds something. `measured` also holds the agreement of decisions.

    Attributes:
        measured: What was measured on all samples, by path of the model.
        memo: Stores what was measured on all samples, so that a search that continues does not run a model again.

    Example:
        >>> evaluator = FloatAgreement("model.onnx", SampleCache(data))  # doctest: +SKIP
        >>> evaluator("model.int8.onnx")  # doctest: +SKIP
        24.8
    """

    direction: ClassVar[str] = "maximize"
    name: ClassVar[str] = "dB"
    reference_score: ClassVar[float] = MOST_DB
    measured: dict[Path, Closeness] = field(default_factory=dict, repr=False, kw_only=True)
    memo: Memo = field(default_factory=lambda: Memo(None), repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, object]:
        """Drop what was measured and cached: a spawned process measures its own models."""
        kept = {name: value for name, value in super().__getstate__().items() if name != "_layout"}
        return {**kept, "measured": {}, "memo": Memo(None)}

    def __fingerprint__(self) -> Digest:
        """Return the digest of everything that a score depends on, except the model."""
        return fingerprint(self.fingerprint)

    def scores(self, model_path: str | Path, wanted: list[int]) -> NDArray[np.float64]:
        """Return the decibels of the samples; those of all samples are stored."""
        path, arithmetic = Path(model_path), arithmetic_in_force()
        if wanted != list(range(self.size)):
            return self.closeness(path, wanted, arithmetic).decibels
        measured = self.measured[path] = self.memo.run(closeness, self, ModelFile(path), arithmetic).value
        return measured.decibels

    def closeness(self, model: str | Path, indices: Iterable[int], arithmetic: Arithmetic) -> Closeness:
        """Run a model and compare it with the float model.

        Args:
            model: The model.
            indices: Indices of the samples.
            arithmetic: What computes the model.
        """
        order = list(indices)
        pairs = dict(self.pairs(model, order, arithmetic))
        return Closeness.of((pairs[index] for index in order), self._layout)

    @cached_property
    def _layout(self) -> OutputLayout:
        """What the axes of the float model's outputs mean."""
        _, feeds = next(iter(self.samples.read([0])))
        return output_layout(model_source(self.reference).load(), feeds)

    def _identity(self) -> tuple[object, ...]:
        return model_source(self.reference), self.samples.data


@dataclass(frozen=True)
class ModelFile:
    """A model file, identified by its content."""

    path: Path

    def __fingerprint__(self) -> Digest:
        return fingerprint(model_source(self.path))


@stage(name="closeness", version=4, environment=machine_environment)
def closeness(evaluator: FloatAgreement, model: ModelFile, arithmetic: Arithmetic) -> Closeness:
    """Compare a model with the float model on all samples.

    Args:
        evaluator: The float model and the samples.
        model: The model.
        arithmetic: What computes the model.
    """
    return evaluator.closeness(model.path, range(evaluator.size), arithmetic)


def _measured(pairs: Mapping[str, Pair | None], layout: OutputLayout) -> tuple[float, float, float]:
    """Return decibels, agreement and ties of one sample."""
    # Parts of all maps with the same positions, whether they are outputs of their own or joined in one.
    maps: dict[tuple[int, ...], list[MapPart]] = {}
    decibels: list[float] = []
    agreed: list[float | None] = []
    whole = {name: pair and Pair(*(layout.with_batch(name, one) for one in pair)) for name, pair in pairs.items()}
    for name, pair in whole.items():
        if pair is None:
            decibels.append(LEAST_DB)
            agreed.append(0.0)
        elif layout.is_map(name, pair.reference):
            for part in _parts_of(pair, layout.axis(name, pair.reference), layout.parts.get(name)):
                maps.setdefault(part.positions, []).append(part)
        else:
            decibels.append(output_decibels(pair))
            agreed.append(agreement(pair))
    for together in maps.values():
        decibels += map_decibels(together)
        agreed.append(map_agreement(together))
    ties = [None if pair is None or name in layout.maps else _new_ties(pair) for name, pair in whole.items()]
    return _average(min(max(one, LEAST_DB), MOST_DB) for one in decibels), _average(agreed), _average(ties)


def _parts_of(pair: Pair, axis: int, parts: Sequence[Sequence[int]] | None) -> list[MapPart]:
    """Return the parts of one output."""
    # The number of channels may depend on the sample, such as the length of a sentence.
    if parts is None or max(map(max, parts)) >= pair.reference.shape[axis]:
        return [MapPart.of(pair, axis)]
    return [MapPart.of(pair, axis, channels) for channels in parts]


def _new_ties(pair: Pair) -> float | None:
    ours, theirs = score_rows(pair.reference), score_rows(pair.quantized)
    return None if ours is None or theirs is None else float((tied(theirs) & ~tied(ours)).mean())


def _average(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else np.nan


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
