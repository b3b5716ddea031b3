"""`Evaluation`, the value that the evaluate stage returns."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quantry.errors import InternalError
from quantry.evaluate.comparison import bootstrap_interval
from quantry.evaluate.latency import Latency
from quantry.evaluate.metrics import Metric
from quantry.memo import Blob, Digest, fingerprint
from quantry.notes import Note

Scores = Mapping[str, "MetricScore"]


@dataclass(frozen=True, eq=False)
class MetricScore:
    """One metric over all samples.

    Attributes:
        name: The metric's name.
        value: Mean over the samples.
        higher_is_better: The metric's direction.
        per_sample: One score per sample, in the order of the data, shape (samples,); read-only. Two quantized models
            that were scored on the same data can be compared sample by sample.
        interval: 95 % bootstrap interval of the mean.
    """

    name: str
    value: float
    higher_is_better: bool
    per_sample: NDArray[np.float64]
    interval: tuple[float, float]

    @classmethod
    def of_samples(cls, metric: Metric, per_sample: NDArray[np.float64]) -> Self:
        """Return mean and interval of the scores.

        Args:
            metric: The metric.
            per_sample: One score per sample, at least one.
        """
        scores = np.array(per_sample, dtype=np.float64)
        scores.setflags(write=False)
        return cls(metric.name, float(scores.mean()), metric.higher_is_better, scores, bootstrap_interval(scores))

    def is_better_than(self, other: "MetricScore") -> bool:
        """Return whether this score is strictly better than another of the same metric.

        Raises:
            InternalError: The other score is of another metric.
        """
        if other.name != self.name:
            raise InternalError(f"compared scores must be of one metric, got {other.name!r} and {self.name!r}")
        return self.value > other.value if self.higher_is_better else self.value < other.value


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Accuracy, speed and size of the quantized model compared with the float model.

    Attributes:
        metrics: Metric names to scores over all outputs together.
        outputs: Output names to the scores of that output alone.
        samples: Number of samples compared.
        float_bytes: Size of the prepared float model with its weights.
        quantized_bytes: Size of the quantized model with its weights.
        latency: Times of both models, or None if not requested. Times differ between runs and are not part of the
            value's identity.
        notes: Messages for the user, such as outputs that were NaN.
    """

    metrics: Scores
    outputs: Mapping[str, Scores]
    samples: int
    float_bytes: int
    quantized_bytes: int
    latency: Latency | None = None
    notes: tuple[Note, ...] = dataclasses.field(default=(), compare=False)

    def __post_init__(self) -> None:
        outputs = {name: MappingProxyType(dict(scores)) for name, scores in self.outputs.items()}
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))
        object.__setattr__(self, "outputs", MappingProxyType(outputs))
        object.__setattr__(self, "notes", tuple(self.notes))

    def __repr__(self) -> str:
        scores = "".join(f", {name} {score.value:.4g}" for name, score in self.metrics.items())
        return f"Evaluation({self.samples} samples{scores}, {self.float_bytes} -> {self.quantized_bytes} bytes)"

    def to_blob(self) -> Blob:
        """Return the stored form: all scores in one array."""
        rows = list(self._rows())
        meta = {
            "scores": [
                {"output": output, "name": score.name, "higher_is_better": score.higher_is_better}
                for output, score in rows
            ],
            "output_names": list(self.outputs),
            "samples": self.samples,
            "float_bytes": self.float_bytes,
            "quantized_bytes": self.quantized_bytes,
            "latency": None if self.latency is None else dataclasses.asdict(self.latency),
        }
        per_sample = np.array([score.per_sample for _, score in rows]).reshape(len(rows), self.samples)
        summary = np.array([(score.value, *score.interval) for _, score in rows]).reshape(len(rows), 3)
        return Blob(meta=meta, arrays={"per_sample": per_sample, "summary": summary}, notes=self.notes)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the evaluation that `to_blob` stored."""
        meta = blob.meta
        tables: dict[str | None, dict[str, MetricScore]] = {None: {}, **{name: {} for name in meta["output_names"]}}
        for row, (value, *interval), per_sample in zip(
            meta["scores"], blob.arrays["summary"].tolist(), blob.arrays["per_sample"], strict=True
        ):
            tables[row["output"]][row["name"]] = MetricScore(
                row["name"], value, row["higher_is_better"], per_sample, (interval[0], interval[1])
            )
        overall = tables.pop(None)
        return cls(
            metrics=overall,
            outputs={name: scores for name, scores in tables.items() if name is not None},
            samples=meta["samples"],
            float_bytes=meta["float_bytes"],
            quantized_bytes=meta["quantized_bytes"],
            latency=None if meta["latency"] is None else _read_latency(meta["latency"]),
            notes=blob.notes,
        )

    def __fingerprint__(self) -> Digest:
        """Return the content digest.

        Of the latency only the conditions count: times are never the same twice, but an evaluation with times must not
        be taken for one without, nor for one of another machine.
        """
        measured = None if self.latency is None else (self.latency.runs, self.latency.machine)
        scores = tuple((output, score.name, score.per_sample) for output, score in self._rows())
        return fingerprint((scores, self.samples, self.float_bytes, self.quantized_bytes, measured))

    def _rows(self) -> Iterator[tuple[str | None, MetricScore]]:
        """Yield every score with its output; None for all outputs together."""
        yield from ((None, score) for score in self.metrics.values())
        yield from ((output, score) for output, scores in self.outputs.items() for score in scores.values())


def _read_latency(plain: Mapping[str, Any]) -> Latency:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Latency(**fields)
