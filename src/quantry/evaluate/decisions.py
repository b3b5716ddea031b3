"""What a model decides: the class it ranks first, the places it marks, and whether two models decide alike.

A model is deployed with ``argmax``, which returns the first of several equal scores. All code here follows that rule.
"""

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import Pair, decibels

Rows = NDArray[np.float64]
"""Scores, shape [rows, classes]."""

MARKED_SHARE = 1e-3
"""Share of the values of a map, such as a detector's output, that count as what the model marks.

A detector sees a handful of objects in thousands of positions. A share of 1 in 1000 is 30 to 300 values of the usual
detectors: enough to rank models on few samples, few enough to leave out most of the background.
"""

QUIET_CHANNELS = 0.1
"""Channels of a map that vary by less than this share of the typical channel are weighed as if they varied this much.

Otherwise a class that occurs in no sample, whose scores are rounded to zero, would hide all other errors.
"""

LEAST_PROBABILITY = 1e-3
"""Probabilities of a Softmax below this count as equal."""


def ranks(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the place of each row's label if classes are sorted by score, from 0; the first of equal scores wins.

    A label whose score is NaN comes last, and a NaN of another class is ahead of it, as for ``numpy.argmax``.

    Args:
        scores: Scores, shape [rows, classes].
        labels: A class for each row, shape [rows].

    Example:
        >>> ranks(np.array([[0.5, 0.5, 0.0]]), np.array([1])).tolist()
        [1]
    """
    own = scores[np.arange(len(scores)), labels][:, None]
    classes = np.arange(scores.shape[1])
    ahead = (scores > own) | np.isnan(scores) | ((scores == own) & (classes < labels[:, None]))
    places: NDArray[np.int64] = np.where(np.isnan(own[:, 0]), scores.shape[1], ahead.sum(axis=1))
    return places


def tied(scores: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return for each row whether several classes share its highest score.

    Args:
        scores: Scores, shape [rows, classes].
    """
    result: NDArray[np.bool_] = (scores == scores.max(axis=1, keepdims=True)).sum(axis=1) > 1
    return result


def score_rows(output: Rows) -> Rows | None:
    """Return an output as rows of class scores; None if it has no such form.

    The first axis has the rows if there are several; axes of length 1 are dropped. A map, such as the output of a
    detector, and an output with one number for each row hold no class scores.

    Args:
        output: A float output of a model.
    """
    if output.ndim == 0 or output.size == 0:
        return None
    rows = output.reshape(len(output), -1) if output.ndim > 1 else output[None]
    longest = max(output.shape[1:] if output.ndim > 1 else output.shape)
    return rows if rows.shape[1] == longest > 1 else None


def agreement(pair: Pair) -> float | None:
    """Return the share of decisions that both models share, 0 to 1; None if an output holds no decision.

    - Class scores: whether both rank the same class first.
    - A map with several axes: the share of the most prominent values, see `MARKED_SHARE`, that both have in common.
      Channels are standardized first, because a box's width and a class's probability differ in unit.
    - One number: no decision.

    Args:
        pair: One output of both models; labels are ones and zeros, see `pair_outputs`.
    """
    ours, theirs = pair
    if ours.size == 0 or ours.ndim == 0 or ours[0].size == 0:
        return None
    rows, other = score_rows(ours), score_rows(theirs)
    if rows is not None and other is not None:
        return float((rows.argmax(axis=1) == other.argmax(axis=1)).mean())
    if ours.ndim < 3 or ours[0].size < 2:
        return None
    marked = max(1, round(ours.size * MARKED_SHARE))
    mean, deviation = _channel_scales(ours)
    sets = [
        set(np.argpartition(-np.abs((values - mean) / deviation).ravel(), marked - 1)[:marked].tolist())
        for values in (ours, theirs)
    ]
    return len(sets[0] & sets[1]) / marked


def output_decibels(pair: Pair) -> float:
    """Return the signal-to-noise ratio of one output in dB; the channels of a map count alike.

    Args:
        pair: One output of both models.
    """
    ours, theirs = pair
    if ours.size == 0:
        return decibels(0.0, 0.0)
    if _is_distribution(score_rows(ours)):
        # Probabilities hide how far the scores they come from are: compared with a floor, because nobody looks at the
        # order of classes that are impossible.
        ours, theirs = (np.log(np.maximum(values, LEAST_PROBABILITY)) for values in pair)
        ours, theirs = ours - np.log(LEAST_PROBABILITY), theirs - np.log(LEAST_PROBABILITY)
    if ours.ndim < 3 or score_rows(ours) is not None:
        return decibels(float(np.square(ours).sum()), float(np.square(theirs - ours).sum()))
    mean, deviation = _channel_scales(ours)
    signal, noise = (ours - mean) / deviation, (theirs - ours) / deviation
    return decibels(float(np.square(signal).sum()), float(np.square(noise).sum()))


def _is_distribution(rows: Rows | None) -> bool:
    """Whether rows are probabilities, as a Softmax returns them."""
    return rows is not None and bool((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-3))


def _channel_scales(values: Rows) -> tuple[Rows, Rows]:
    """Return mean and standard deviation of each channel, in a shape that broadcasts."""
    axis = _channel_axis(values)
    others = tuple(index for index in range(values.ndim) if index != axis)
    mean = values.mean(axis=others, keepdims=True)
    deviation = values.std(axis=others, keepdims=True)
    typical = float(np.sqrt(np.square(deviation).mean()))
    return mean, np.maximum(deviation, QUIET_CHANNELS * typical or 1.0)


def _channel_axis(values: Rows) -> int:
    """Return the axis whose entries differ most in size: the channels of a map, in any layout."""
    axes = [index for index in range(1, values.ndim) if values.shape[index] > 1]

    def spread_of_sizes(axis: int) -> float:
        others = tuple(index for index in range(values.ndim) if index != axis)
        sizes = np.sqrt(np.square(values).mean(axis=others))
        return float(np.log(np.maximum(sizes, 1e-30)).std())

    # An axis with one value for each entry has no scale of its own.
    able = [axis for axis in axes if values.size > values.shape[axis]]
    return max(able or axes or [values.ndim - 1], key=spread_of_sizes)
