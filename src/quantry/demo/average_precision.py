"""Average precision as COCO defines it, over ten overlaps, 101 recalls and all areas.

Detections of one image and class are taken best first; at each overlap threshold a detection hits the free object it
overlaps most, if by at least the threshold. Over all images, precision at a recall r is the best precision at any
recall of r or more, read at r = 0, 0.01 ... 1 and averaged. (https://cocodataset.org/#detection-eval)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantry.demo.detections import Detections, overlaps
from quantry.errors import DataError

IOU_THRESHOLDS: NDArray[np.float64] = np.linspace(0.5, 0.95, 10)
RECALLS: NDArray[np.float64] = np.linspace(0.0, 1.0, 101)
MOST_DETECTIONS = 100


@dataclass(frozen=True)
class ImageMatches:
    """What one image adds to the average precision; any list of these, resampled or not, can be summarised.

    Attributes:
        scores: Of the detections that count, float64 [n].
        labels: Their classes, int64 [n].
        hits: Whether each found an object, at each of IOU_THRESHOLDS, bool [10, n].
        objects: Number of labelled objects of each class, int64 [classes].
    """

    scores: NDArray[np.float64]
    labels: NDArray[np.int64]
    hits: NDArray[np.bool_]
    objects: NDArray[np.int64]


@dataclass(frozen=True)
class AveragePrecision:
    """The summary over images.

    Attributes:
        map: Mean over classes and overlaps 0.5, 0.55 ... 0.95.
        map50: Mean over classes at overlap 0.5.
        by_class: float64 [classes, 10]; NaN for a class without objects.
    """

    map: float
    map50: float
    by_class: NDArray[np.float64]


def _hits(overlap: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Match the detections of one image and class, best first, with its objects.

    Args:
        overlap: Intersection over union [detections, objects].

    Returns:
        Hits [10, detections].
    """
    found, objects = overlap.shape
    hits = np.zeros((len(IOU_THRESHOLDS), found), dtype=np.bool_)
    free = np.ones((len(IOU_THRESHOLDS), objects), dtype=np.bool_)
    levels = np.arange(len(IOU_THRESHOLDS))
    for index in range(found if objects else 0):
        offered = np.where(free, overlap[index], -1.0)
        # Of equal overlaps the reference takes the last object.
        best = objects - 1 - offered[:, ::-1].argmax(axis=1)
        hit = offered[levels, best] >= IOU_THRESHOLDS
        hits[:, index] = hit
        free[levels[hit], best[hit]] = False
    return hits


def match_image(
    found: Detections, boxes: NDArray[np.floating], labels: NDArray[np.int64], classes: int
) -> ImageMatches:
    """Match one image's detections with its labelled objects.

    Args:
        found: The detections, in any order.
        boxes: Corners of the objects [m, 4].
        labels: Their classes [m].
        classes: Number of classes.
    """
    order = np.argsort(-found.scores, kind="stable")
    truth = boxes.astype(np.float64)
    picks: list[NDArray[np.int64]] = []
    hits: list[NDArray[np.bool_]] = []
    for label in range(classes):
        pick = order[found.labels[order] == label][:MOST_DETECTIONS]
        picks.append(pick)
        hits.append(_hits(overlaps(found.boxes[pick], truth[labels == label])))
    chosen = np.concatenate(picks)
    return ImageMatches(
        scores=found.scores[chosen],
        labels=found.labels[chosen],
        hits=np.concatenate(hits, axis=1),
        objects=np.bincount(labels, minlength=classes),
    )


def _precision(scores: NDArray[np.float64], hits: NDArray[np.bool_], objects: int) -> NDArray[np.float64]:
    """Return one class's average precision at each overlap [10]."""
    ordered = hits[:, np.argsort(-scores, kind="stable")]
    right = np.cumsum(ordered, axis=1, dtype=np.float64)
    recall = right / objects
    precision = right / np.arange(1, ordered.shape[1] + 1)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    padded = np.concatenate([envelope, np.zeros((len(envelope), 1))], axis=1)
    reached = [np.searchsorted(level, RECALLS, side="left") for level in recall]
    return np.array([row[places].mean() for row, places in zip(padded, reached, strict=True)])


def summarize(images: Sequence[ImageMatches]) -> AveragePrecision:
    """Summarise the matches of any number of images.

    Raises:
        DataError: No image holds a labelled object, so that the mean is not defined.
    """
    objects = np.sum([image.objects for image in images], axis=0) if images else np.zeros(1)
    if not objects.any():
        raise DataError(
            f"average precision needs at least one labelled object; given {len(images)} images with none; "
            "in quantry.demo.summarize"
        )
    scores = np.concatenate([image.scores for image in images])
    labels = np.concatenate([image.labels for image in images])
    hits = np.concatenate([image.hits for image in images], axis=1)
    by_class = np.full((len(objects), len(IOU_THRESHOLDS)), np.nan)
    for label in np.flatnonzero(objects):
        mine = labels == label
        by_class[label] = _precision(scores[mine], hits[:, mine], int(objects[label]))
    present = by_class[objects > 0]
    return AveragePrecision(float(present.mean()), float(present[:, 0].mean()), by_class)
