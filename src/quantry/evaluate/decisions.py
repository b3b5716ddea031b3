"""What a model decides: the class it ranks first, what it finds on a map, and whether two models decide alike.

A model is deployed with ``argmax``, which returns the first of several equal scores. All code here follows that rule.

A map, such as the output of a detector, says something about each of many positions. A detector says several things:
a box and scores. These are the parts of the map, whether they are outputs of their own or joined in one tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

FOUND_SHARE = 0.25
"""A position of a map counts as found if it stands out by at least this share of the most prominent one.

Prominence is a square, so a score of half the highest one is enough.
"""

BACKGROUND_SHARE = 0.15
"""A map is mostly background if half of its positions stand out by less than this share of the most prominent one."""

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
    - A map: the share of the most prominent values, see `MARKED_SHARE`, that both have in common.
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
    return map_agreement([MapPart.of(pair)])


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
    if not is_map(ours):
        return decibels(float(np.square(ours).sum()), float(np.square(theirs - ours).sum()))
    return MapPart.of(pair).decibels()


def is_map(output: Rows) -> bool:
    """Return whether an output says something about each of many positions.

    Args:
        output: An output of a model.
    """
    return output.ndim >= 3 and output.size > 0 and score_rows(output) is None


@dataclass(frozen=True, eq=False)
class MapPart:
    """One thing that both models say about each position of a map, such as a box.

    Attributes:
        positions: Lengths of the axes of the positions.
        ours: What the float model says, shape [positions, channels].
        theirs: What the other model says, likewise.
    """

    positions: tuple[int, ...]
    ours: Rows
    theirs: Rows

    @classmethod
    def of(cls, pair: Pair, axis: int | None = None, channels: Sequence[int] | None = None) -> "MapPart":
        """Return a part of a map.

        Args:
            pair: The map of both models.
            axis: The axis of the channels; None finds it.
            channels: The channels of the part; None takes all.
        """
        own = channel_axis(pair.reference) if axis is None else axis
        # Copied, because sums over a view depend on its layout.
        ours, theirs = (np.ascontiguousarray(np.moveaxis(values, own, -1)) for values in pair)
        if channels is not None:
            ours, theirs = ours[..., list(channels)], theirs[..., list(channels)]
        size = ours.shape[-1]
        return cls(ours.shape[:-1], ours.reshape(-1, size), theirs.reshape(-1, size))

    def standardized(self) -> tuple[Rows, Rows]:
        """Return both with the float model's mean and standard deviation of each channel removed.

        A box's width and a class's probability differ in unit.
        """
        mean, deviation = self.ours.mean(axis=0), self.ours.std(axis=0)
        if not deviation.any():
            return self.ours, self.theirs  # one value everywhere, such as labels
        typical = float(np.sqrt(np.square(deviation).mean()))
        scale = np.maximum(deviation, QUIET_CHANNELS * typical or 1.0)
        return (self.ours - mean) / scale, (self.theirs - mean) / scale

    def decibels(self, where: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the signal-to-noise ratio in dB, in which channels count alike.

        Args:
            where: Which positions count.
        """
        ours, theirs = (values[where] for values in self.standardized())
        return decibels(float(np.square(ours).sum()), float(np.square(theirs - ours).sum()))

    def prominence(self) -> tuple[Rows, Rows]:
        """Return for both how much each position stands out, relative to the mean of the float model; [positions]."""
        mean = self.ours.mean(axis=0)
        ours, theirs = (np.square(values - mean).sum(axis=1) for values in (self.ours, self.theirs))
        usual = float(ours.mean()) or 1.0
        return ours / usual, theirs / usual


def map_agreement(parts: Sequence[MapPart]) -> float:
    """Return the share of the most prominent values of a map, see `MARKED_SHARE`, that both models have in common.

    Of a map with one value everywhere, such as labels (see `pair_outputs`), this is the share of equal values.

    Args:
        parts: The parts of the map.
    """
    if all(np.ptp(part.ours) == 0 for part in parts):
        return float(np.mean([(part.theirs == part.ours).mean() for part in parts]))
    first, *others = (part.standardized() for part in parts)
    both = [np.concatenate(values, axis=1) for values in zip(first, *others, strict=True)] if others else first
    marked = max(1, round(both[0].size * MARKED_SHARE))
    ours, theirs = (_marks(np.abs(values), marked) for values in both)
    return float(np.minimum(ours, theirs).sum() / marked)


def _marks(sizes: Rows, marked: int) -> Rows:
    """Return for each value how likely it is among the largest ones, if equal values are drawn at random."""
    smallest = np.partition(sizes, -marked, axis=None)[-marked]
    above, equal = sizes > smallest, sizes == smallest
    likely: Rows = above + equal * ((marked - above.sum()) / equal.sum())
    return likely


def map_decibels(parts: Sequence[MapPart]) -> list[float]:
    """Return the signal-to-noise ratio of each part of a map in dB.

    A detector says things of different kinds, such as boxes and scores, and nearly all positions are background. Then
    only those positions count at which either model finds something, because boxes without an object are discarded.
    Scores are near zero at most positions, so they decide which these are. Other maps count everywhere.

    Args:
        parts: The parts of the map.
    """
    if len({part.ours.shape[1] for part in parts}) < 2:
        return [part.decibels() for part in parts]
    ours, theirs = (sum(values) for values in zip(*(part.prominence() for part in parts), strict=True))
    if np.median(ours) > BACKGROUND_SHARE * ours.max():
        return [part.decibels() for part in parts]
    # Of both models, so that what only the other one finds counts too.
    found = np.maximum(ours, theirs) >= FOUND_SHARE * ours.max()
    return [part.decibels(found) for part in parts]


def _is_distribution(rows: Rows | None) -> bool:
    """Whether rows are probabilities, as a Softmax returns them."""
    return rows is not None and bool((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-3))


def channel_axis(values: Rows) -> int:
    """Return the axis of the channels of a map, in any layout: that whose entries differ most in size.

    Args:
        values: The map.
    """
    several = [index for index in range(1, values.ndim) if values.shape[index] > 1]

    def spread_of_sizes(axis: int) -> float:
        others = tuple(index for index in range(values.ndim) if index != axis)
        sizes = np.sqrt(np.square(values).mean(axis=others))
        return float(np.log(np.maximum(sizes, 1e-30)).std())

    # An axis with one value for each entry has no scale of its own.
    able = [axis for axis in several if values.size > values.shape[axis]]
    return max(able or several or [values.ndim - 1], key=spread_of_sizes)
