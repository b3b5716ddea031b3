"""Run the float and the quantized model over the data, one sample at a time, and score the outputs.

`bootstrap_interval` tells how reliable a mean over samples is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantry.errors import DataError, InternalError
from quantry.evaluate.metrics import Metric
from quantry.evaluate.metrics.metric import Pair, pair_outputs
from quantry.notes import Note, NoteKind
from quantry.runtime.sessions import run_session

if TYPE_CHECKING:
    import onnxruntime

_OTHER_SHAPE = "another shape than the float model's"
_NOT_FINITE = "NaN or infinite values where the float model's are finite, or the reverse,"


@dataclass(frozen=True, eq=False)
class Comparison:
    """The scores of all samples.

    Attributes:
        output_names: The outputs, in the float model's order.
        scores: Shape (samples, 1 + outputs, metrics); entry 0 of the second axis is all outputs together.
        notes: Which outputs could not be compared, and how often.
    """

    output_names: tuple[str, ...]
    scores: NDArray[np.float64]
    notes: tuple[Note, ...]


def compare_sessions(
    reference: "onnxruntime.InferenceSession",
    quantized: "onnxruntime.InferenceSession",
    samples: Iterable[Mapping[str, NDArray[Any]]],
    metrics: Sequence[Metric],
) -> Comparison:
    """Score the quantized model's outputs against the float model's, sample by sample.

    Outputs are dropped after scoring, so memory does not grow with the number of samples.

    Args:
        reference: Session of the float model.
        quantized: Session of the quantized model.
        samples: Inputs of both models: input names to arrays.
        metrics: The metrics.

    Raises:
        DataError: There is no sample, or the float model cannot run on one.
        InternalError: The quantized model has other outputs than the float model, or fails on a sample.
    """
    check_outputs(reference, quantized)
    names = tuple(output.name for output in reference.get_outputs())
    scores: list[list[list[float]]] = []
    unlike: Counter[tuple[str, str]] = Counter()
    for index, feeds in enumerate(samples):
        expected, got = _run_both(reference, quantized, feeds, index)
        pairs = [pair_outputs(expected[name], got[name]) for name in names]
        for name, pair in zip(names, pairs, strict=True):
            if pair is None:
                unlike[name, _NOT_FINITE if expected[name].shape == got[name].shape else _OTHER_SHAPE] += 1
        scores.append(_score_sample(metrics, pairs))
    if not scores:
        raise DataError("evaluation data must contain at least one sample, got none; in the evaluate stage")
    message = (
        "output {output!r} of the quantized model has {reason} in {count} of {samples} samples; these have the worst "
        "possible score"
    )
    notes = tuple(
        Note.of(message, NoteKind.IMPORTANT, output=name, reason=reason, count=count, samples=len(scores))
        for (name, reason), count in sorted(unlike.items())
    )
    return Comparison(names, np.array(scores, dtype=np.float64), notes)


def check_outputs(reference: "onnxruntime.InferenceSession", quantized: "onnxruntime.InferenceSession") -> None:
    """Check that both models have the same outputs, as far as that is known before they run.

    Raises:
        InternalError: A name is missing or unexpected, or a rank or a known dimension differs.
    """
    ours = {output.name: output.shape for output in reference.get_outputs()}
    theirs = {output.name: output.shape for output in quantized.get_outputs()}
    if ours.keys() != theirs.keys():
        raise InternalError(
            f"the quantized model must have the float model's outputs {sorted(ours)}, got {sorted(theirs)}; in evaluate"
        )
    for name, shape in ours.items():
        if not _may_be_equal(shape, theirs[name]):
            raise InternalError(
                f"the quantized model's outputs must have the float model's shapes, here {shape}, got {theirs[name]}; "
                f"output {name!r}"
            )


def _may_be_equal(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    # A model without declared shape has an empty one here, like a scalar.
    if not ours or not theirs:
        return True
    return len(ours) == len(theirs) and all(
        one == other for one, other in zip(ours, theirs, strict=True) if isinstance(one, int) and isinstance(other, int)
    )


def _run_both(
    reference: "onnxruntime.InferenceSession",
    quantized: "onnxruntime.InferenceSession",
    feeds: Mapping[str, NDArray[Any]],
    index: int,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    try:
        expected = run_session(reference, feeds)
    except DataError as error:
        raise DataError(f"{error}; float model, sample {index}") from error
    try:
        return expected, run_session(quantized, feeds)
    except DataError as error:
        raise InternalError(
            f"the quantized model must run on every sample that the float model runs on, got {error}; sample {index}"
        ) from error


def _score_sample(metrics: Sequence[Metric], pairs: Sequence[Pair | None]) -> list[list[float]]:
    """Return one row of scores for all outputs together and one per output."""
    alone = [[metric.score_pair(pair) for metric in metrics] for pair in pairs]
    together = alone[0] if len(pairs) == 1 else [metric.score_outputs(pairs) for metric in metrics]
    return [together, *alone]


_CHUNK_ELEMENTS = 1 << 20


def bootstrap_interval(
    per_sample: NDArray[np.float64], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return a confidence interval of the mean over samples, by the percentile bootstrap (Efron, 1979).

    Samples are drawn with replacement, repeatedly; the interval contains the middle of the means. It shows how much the
    score would vary with other data of the same kind. Equal scores give equal intervals.

    Args:
        per_sample: One score per sample, shape (n,), at least one; infinities are allowed, NaN is not.
        confidence: Fraction of the means inside the interval, between 0 and 1.
        resamples: Number of draws.
        seed: Seed of the random numbers.

    Returns:
        Lower and upper end; both are the score itself if there is only one sample.

    Example:
        >>> import numpy as np
        >>> low, high = bootstrap_interval(np.array([1.0, 2.0, 3.0]))
        >>> low < 2.0 < high
        True
    """
    count = per_sample.size
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_ELEMENTS // count)
    means = np.sort(
        np.concatenate(
            [
                per_sample[generator.integers(0, count, size=(min(rows, resamples - start), count))].mean(axis=1)
                for start in range(0, resamples, rows)
            ]
        )
    )
    # The ends are means that occurred (the outer neighbours): interpolating between infinities would give NaN.
    tail = (1 - confidence) / 2 * (resamples - 1)
    return float(means[math.floor(tail)]), float(means[resamples - 1 - math.floor(tail)])
