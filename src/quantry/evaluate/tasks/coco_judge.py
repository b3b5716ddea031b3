"""COCO's average precision: by faster-coco-eval where it is installed, by our own arithmetic elsewhere."""

import contextlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from quantry.evaluate.tasks.average_precision import AveragePrecision, ImageMatches, match_image, summarize
from quantry.evaluate.tasks.coco_labels import CocoLabels, LabelledBoxes
from quantry.evaluate.tasks.detections import Detections


def coco_average_precision(labels: CocoLabels, found: Sequence[Detections]) -> AveragePrecision:
    """Return the average precision of the detections in each labelled image.

    Args:
        labels: The labelled images.
        found: Detections in pixels of the image, one value for each image, in the same order.

    Raises:
        DataError: No image holds a labelled object.
    """
    if importlib.util.find_spec("faster_coco_eval") is not None and any(len(image.scores) for image in found):
        return _by_library(labels, found)
    return summarize(match_images(labels, found))


def match_images(labels: CocoLabels, found: Sequence[Detections]) -> list[ImageMatches]:
    """Return what each labelled image adds to the average precision.

    Args:
        labels: The labelled images.
        found: Detections in pixels of the image, one value for each image, in the same order.
    """
    classes = len(labels.categories)
    return [
        match_image(detections, image.boxes, image.labels, classes, image.crowd)
        for image, detections in zip(labels.images, found, strict=True)
    ]


def _by_library(labels: CocoLabels, found: Sequence[Detections]) -> AveragePrecision:
    from faster_coco_eval import COCO, COCOeval_faster

    dataset = {
        "info": {},
        "images": [
            {"id": number, "width": image.width, "height": image.height}
            for number, image in enumerate(labels.images, start=1)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(labels.categories, start=1)],
        "annotations": _truth(labels.images),
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(dataset)
        judge = COCOeval_faster(truth, truth.loadRes(_results(found)), "bbox", print_function=lambda *_: None)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    # Axes: overlaps, recalls, classes, areas (0 is all), numbers of detections (the last is 100).
    precision = np.asarray(judge.eval["precision"], dtype=np.float64)[:, :, :, 0, -1]
    by_class = np.where(precision[0, 0] < 0, np.nan, precision.mean(axis=1)).T
    present = by_class[~np.isnan(by_class[:, 0])]
    return AveragePrecision(float(present.mean()), float(present[:, 0].mean()), by_class)


def _truth(images: Sequence[LabelledBoxes]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, image in enumerate(images, start=1):
        for box, label, crowd in zip(image.boxes, image.labels, image.crowd, strict=True):
            sides = _sides(box)
            row = {"id": len(rows) + 1, "image_id": number, "category_id": int(label) + 1, "bbox": sides}
            rows.append(row | {"area": sides[2] * sides[3], "iscrowd": int(crowd)})
    return rows


def _results(found: Sequence[Detections]) -> list[dict[str, Any]]:
    return [
        {"image_id": number, "category_id": int(label) + 1, "bbox": _sides(box), "score": float(score)}
        for number, image in enumerate(found, start=1)
        for box, label, score in zip(image.boxes, image.labels, image.scores, strict=True)
    ]


def _sides(box: Any) -> list[float]:
    return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]
