"""What a detector found in one image, and the geometry of boxes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Detections:
    """What a detector found in one image.

    Attributes:
        boxes: Corners x0, y0, x1, y1 in pixels, float64 [n, 4].
        scores: Confidence in 0..1, float64 [n].
        labels: Indices of the classes, int64 [n].
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    labels: NDArray[np.int64]


def overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intersection over union [n, m] of boxes a [n, 4] and b [m, 4], given as corners."""
    shared, area_a, area_b = _areas(a, b)
    return _ratio(shared, area_a[:, None] + area_b[None, :] - shared)


def covered(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return which part [n, m] of each box a [n, 4] lies inside each box b [m, 4]."""
    shared, area_a, _ = _areas(a, b)
    return _ratio(shared, np.broadcast_to(area_a[:, None], shared.shape))


def suppress(boxes: NDArray[np.float64], labels: NDArray[np.int64], limit: float) -> NDArray[np.int64]:
    """Return the indices of the boxes that greedy non-maximum suppression keeps, class by class.

    Args:
        boxes: Corners [n, 4], best first.
        labels: Classes [n]; boxes of different classes never suppress each other.
        limit: Overlap above which the lesser of two boxes goes.
    """
    rivals = (overlaps(boxes, boxes) > limit) & (labels[:, None] == labels[None, :])
    alive = np.ones(len(boxes), dtype=np.bool_)
    for index in range(len(boxes)):
        if alive[index]:
            alive[index + 1 :] &= ~rivals[index, index + 1 :]
    return np.flatnonzero(alive)


def _areas(
    a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0.0, None).prod(axis=-1)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(axis=-1) for x in (a, b))
    return shared, area_a, area_b


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio: NDArray[np.float64] = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return ratio
