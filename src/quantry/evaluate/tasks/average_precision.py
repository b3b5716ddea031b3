"""COCO's mean average precision: over ten overlaps, 101 recalls and all areas.

Detections of one image and class are processed in order of their scores; at each overlap threshold a detection hits
the unmatched object with the largest overlap, if that is at least the threshold. A detection without a hit that lies in
a crowd by at least the threshold does not count. Over all images, precision at recall r is the best precision at any
recall of at least r; it is read at r = 0, 0.01 ... 1 and averaged. (https://cocodataset.org/#detection-eval)

faster-coco-eval computes it if installed; otherwise the code here does, with the same result.
"""

import contextlib
import importlib.util
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quantry.data.images import ImageOptions
from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError, RecipeError
from quantry.evaluate.tasks.detections import Decoder, Detections, ImageFit, RowDecoder, covered, overlaps
from quantry.evaluate.tasks.labels import CocoLabels, LabelledBoxes
from quantry.evaluate.tasks.task_evaluator import TaskEvaluator, TaskScore, run_model
from quantry.memo import function_digest

IOU_THRESHOLDS: NDArray[np.float64] = np.linspace(0.5, 0.95, 10)
RECALLS: NDArray[np.float64] = np.linspace(0.0, 1.0, 101)
MOST_DETECTIONS = 100

_NOTHING = np.spacing(1)


@dataclass(frozen=True)
class ImageMatches:
    """What one image contributes to the average precision; `summarize` accepts any list of these, also resampled ones.

    Attributes:
        scores: Scores of the detections that count, float64 [n].
        labels: Their classes, int64 [n].
        hits: Whether each detection matched an object, at each of IOU_THRESHOLDS, bool [10, n].
        misses: Whether each detection matched nothing and counts as wrong, bool [10, n].
        objects: Number of labelled objects of each class, int64 [classes].
    """

    scores: NDArray[np.float64]
    labels: NDArray[np.int64]
    hits: NDArray[np.bool_]
    misses: NDArray[np.bool_]
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


def match_image(
    found: Detections,
    boxes: NDArray[np.floating],
    labels: NDArray[np.int64],
    classes: int,
    crowd: NDArray[np.bool_] | None = None,
) -> ImageMatches:
    """Match one image's detections with its labelled objects.

    Args:
        found: The detections, in any order.
        boxes: Corners of the objects [m, 4].
        labels: Their classes [m].
        classes: Number of classes.
        crowd: Which boxes are a crowd, in which detections neither hit nor miss [m]; None for none.
    """
    order = np.argsort(-found.scores, kind="stable")
    truth = boxes.astype(np.float64)
    single = np.ones(len(labels), np.bool_) if crowd is None else ~crowd
    picks: list[NDArray[np.int64]] = []
    hits: list[NDArray[np.bool_]] = []
    misses: list[NDArray[np.bool_]] = []
    for label in range(classes):
        pick = order[found.labels[order] == label][:MOST_DETECTIONS]
        mine = labels == label
        hit = _hits(overlaps(found.boxes[pick], truth[mine & single]))
        picks.append(pick)
        hits.append(hit)
        misses.append(~hit & ~_excused(covered(found.boxes[pick], truth[mine & ~single])))
    chosen = np.concatenate(picks)
    return ImageMatches(
        scores=found.scores[chosen],
        labels=found.labels[chosen],
        hits=np.concatenate(hits, axis=1),
        misses=np.concatenate(misses, axis=1),
        objects=np.bincount(labels[single], minlength=classes),
    )


def summarize(images: Sequence[ImageMatches]) -> AveragePrecision:
    """Return the average precision over any number of images.

    Raises:
        DataError: No image has a labelled object, so the mean is not defined.
    """
    return _Stack.of(images).summary(np.ones(len(images)))


def precision_intervals(
    images: Sequence[ImageMatches], *, resamples: int = 100, seed: int = 0
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return 95 % intervals of ``map`` and ``map50``: how much they would vary with other images of the same kind.

    Images are drawn with replacement; the interval is 1.96 standard deviations of the results to either side, which
    needs fewer draws than percentiles.

    Args:
        images: The matches.
        resamples: Number of draws.
        seed: Seed of the random numbers.
    """
    stack = _Stack.of(images)
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(len(images), np.full(len(images), 1 / len(images)), size=resamples)
    found = [stack.summary(weights.astype(np.float64)) for weights in drawn if stack.has_objects(weights)]
    whole = stack.summary(np.ones(len(images)))
    wide, half = (1.96 * float(np.std([getattr(one, kind) for one in found] or [0.0])) for kind in ("map", "map50"))
    return (whole.map - wide, whole.map + wide), (whole.map50 - half, whole.map50 + half)


@dataclass(frozen=True)
class _Stack:
    """The matches of all images in arrays, sorted by score, so that images can be weighted without sorting again."""

    owner: NDArray[np.int64]
    labels: NDArray[np.int64]
    hits: NDArray[np.bool_]
    misses: NDArray[np.bool_]
    objects: NDArray[np.int64]

    @classmethod
    def of(cls, images: Sequence[ImageMatches]) -> "_Stack":
        objects = np.array([image.objects for image in images]) if images else np.zeros((0, 1), np.int64)
        if not objects.any():
            raise DataError(
                f"average precision needs at least one labelled object, got {len(images)} images without any; "
                "in quantry.evaluate.tasks.summarize"
            )
        order = np.argsort(-np.concatenate([image.scores for image in images]), kind="stable")
        owner = np.repeat(np.arange(len(images)), [len(image.scores) for image in images])
        return cls(
            owner[order],
            np.concatenate([image.labels for image in images])[order],
            np.concatenate([image.hits for image in images], axis=1)[:, order],
            np.concatenate([image.misses for image in images], axis=1)[:, order],
            objects,
        )

    def has_objects(self, weights: NDArray[np.int64]) -> bool:
        return bool((weights @ self.objects).any())

    def summary(self, weights: NDArray[np.float64]) -> AveragePrecision:
        """Return the average precision with each image counted as often as its weight says."""
        objects = weights @ self.objects
        by_class = np.full((len(objects), len(IOU_THRESHOLDS)), np.nan)
        for label in np.flatnonzero(objects):
            mine = np.flatnonzero(self.labels == label)
            count = weights[self.owner[mine]]
            by_class[label] = _precision(self.hits[:, mine] * count, self.misses[:, mine] * count, objects[label])
        present = by_class[objects > 0]
        return AveragePrecision(float(present.mean()), float(present[:, 0].mean()), by_class)


def _hits(overlap: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Match the detections of one image and class, in order of their scores, with its objects.

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
        # The reference implementation takes the last of several objects with equal overlap.
        best = objects - 1 - offered[:, ::-1].argmax(axis=1)
        hit = offered[levels, best] >= IOU_THRESHOLDS
        hits[:, index] = hit
        free[levels[hit], best[hit]] = False
    return hits


def _excused(inside: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which detections lie in a crowd, at each threshold [10, detections]."""
    deepest = inside.max(axis=1, initial=0.0)
    excused: NDArray[np.bool_] = deepest[None, :] >= IOU_THRESHOLDS[:, None]
    return excused


def _precision(hits: NDArray[np.float64], misses: NDArray[np.float64], objects: float) -> NDArray[np.float64]:
    """Return one class's average precision at each overlap [10], from weighted hits and misses in order of scores."""
    right, wrong = np.cumsum(hits, axis=1), np.cumsum(misses, axis=1)
    recall = right / objects
    precision = right / (right + wrong + _NOTHING)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    padded = np.concatenate([envelope, np.zeros((len(envelope), 1))], axis=1)
    reached = [np.searchsorted(level, RECALLS, side="left") for level in recall]
    return np.array([row[places].mean() for row, places in zip(padded, reached, strict=True)])


def coco_average_precision(labels: CocoLabels, found: Sequence[Detections]) -> AveragePrecision:
    """Return the average precision of the detections in each labelled image.

    Args:
        labels: The labelled images.
        found: Detections in pixels of the image, one entry per image, in the same order.

    Raises:
        DataError: No image has a labelled object.
    """
    if importlib.util.find_spec("faster_coco_eval") is not None and any(len(image.scores) for image in found):
        return _by_library(labels, found)
    return summarize(match_images(labels, found))


def match_images(labels: CocoLabels, found: Sequence[Detections]) -> list[ImageMatches]:
    """Return what each labelled image contributes to the average precision.

    Args:
        labels: The labelled images.
        found: Detections in pixels of the image, one entry per image, in the same order.
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
        evaluation = COCOeval_faster(truth, truth.loadRes(_results(found)), "bbox", print_function=lambda *_: None)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    # Axes: overlaps, recalls, classes, areas (0 is all), numbers of detections (the last is 100).
    precision = np.asarray(evaluation.eval["precision"], dtype=np.float64)[:, :, :, 0, -1]
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


_KINDS = ("map", "map50")


@dataclass(frozen=True, eq=False)
class DetectionPrecision(TaskEvaluator):
    """COCO's mean average precision.

    It is not a mean over images, so there are no scores of single samples, and a search cannot stop trials early on it.

    Attributes:
        samples: The labelled images as inputs, in the order of ``labels.images``.
        labels: The labelled images.
        frame: Height and width of the model's input.
        decoder: Converts outputs to boxes; see `quantry.evaluate.tasks.detections`.
        images: How images became inputs.
        kind: "map" over overlaps 0.5 to 0.95, or "map50".
        threads: Threads inside one operator; None uses the default of the process.
    """

    samples: SampleCache
    labels: CocoLabels
    frame: tuple[int, int]
    decoder: Decoder = field(default_factory=RowDecoder)
    images: ImageOptions = ImageOptions(resize="letterbox")
    kind: str = "map"
    threads: int | None = None
    direction: ClassVar[str] = "maximize"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise RecipeError(f"DetectionPrecision.kind must be one of {_KINDS}, got {self.kind!r}")
        if len(self.samples) != len(self.labels.images):
            raise DataError(
                f"there must be one sample per labelled image, got {len(self.samples)} samples and "
                f"{len(self.labels.images)} images; a detector's batch size must be 1"
            )

    @property
    def name(self) -> str:
        """Name of the score in tables."""
        return "mAP" if self.kind == "map" else "mAP50"

    def __call__(self, model_path: str | Path) -> float:
        """Return a model's mean average precision."""
        score: float = getattr(self.measure(model_path), self.kind)
        return score

    def scored(self, model_path: str | Path) -> TaskScore:
        """Return a model's mean average precision with its interval over images."""
        return self.scored_on(model_path, range(len(self.samples)))

    def scored_on(self, model_path: str | Path, indices: Iterable[int]) -> TaskScore:
        """Return a model's mean average precision on some images, with its interval.

        Args:
            model_path: The model.
            indices: Indices of the images.

        Raises:
            DataError: None of these images has a labelled object.
        """
        chosen = sorted(set(indices))
        labels = replace(self.labels, images=tuple(self.labels.images[index] for index in chosen))
        found = self.detect(model_path, chosen)
        value: float = getattr(coco_average_precision(labels, found), self.kind)
        intervals = precision_intervals(match_images(labels, found))
        return TaskScore(value, intervals[_KINDS.index(self.kind)])

    def measure(self, model_path: str | Path) -> AveragePrecision:
        """Return a model's average precision, also by class."""
        return coco_average_precision(self.labels, self.detect(model_path))

    def detect(self, model_path: str | Path, indices: Iterable[int] | None = None) -> list[Detections]:
        """Return a model's detections in each image, in pixels of the image.

        Args:
            model_path: The model.
            indices: Indices of the images, in increasing order; None is all.
        """
        found: list[Detections] = []
        chosen = range(len(self.samples)) if indices is None else indices
        for index, outputs in run_model(model_path, self.samples, chosen, self.threads):
            image = self.labels.images[index]
            fit = ImageFit.of(self.images, image.width, image.height, self.frame)
            raw = self.decoder(outputs, self.frame)[0]
            found.append(Detections(fit.to_image(raw.boxes, image.width, image.height), raw.scores, raw.labels))
        return found

    def _identity(self) -> tuple[object, ...]:
        truth = tuple((image.boxes, image.labels, image.crowd) for image in self.labels.images)
        return self.samples.data, truth, _described(self.decoder), self.images, self.kind


def _described(decoder: object) -> str:
    """Return a description of a decoder that is the same in every process; a function's repr contains its address."""
    if is_dataclass(decoder):
        return repr(decoder)
    name = getattr(decoder, "__qualname__", type(decoder).__qualname__)
    return f"{name} {function_digest(decoder)}"
