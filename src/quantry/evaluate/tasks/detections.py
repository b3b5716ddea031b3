"""Detections: decode the outputs of common detectors to boxes, suppress duplicates, and map boxes back to the image.

A decoder is any callable ``(outputs, frame) -> list of Detections``, one entry per image of the batch: ``outputs`` are
output names to arrays, ``frame`` is height and width of the input.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantry.data.images import ImageOptions
from quantry.errors import DataError, RecipeError, nearest_spelling
from quantry.evaluate.tasks.task_evaluator import Outputs


@dataclass(frozen=True)
class Detections:
    """The detections in one image.

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
    """Return the fraction [n, m] of each box a [n, 4] that lies inside each box b [m, 4]."""
    shared, area_a, _ = _areas(a, b)
    return _ratio(shared, np.broadcast_to(area_a[:, None], shared.shape))


def suppress(boxes: NDArray[np.float64], labels: NDArray[np.int64], limit: float) -> NDArray[np.int64]:
    """Return the indices of the boxes that greedy non-maximum suppression keeps, class by class.

    Args:
        boxes: Corners [n, 4], in order of their scores.
        labels: Classes [n]; boxes of different classes never suppress each other.
        limit: Overlap above which the box with the lower score is removed.
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


Decoder = Callable[[Outputs, tuple[int, int]], list[Detections]]

_BEFORE_SUPPRESSION = 2000
# Limits for log sizes: their exp covers every useful box and cannot overflow, whatever a badly quantized model returns.
_LOG_SIZES = (-10.0, 10.0)


@dataclass(frozen=True)
class RowDecoder:
    """Decoder for detectors that return one row per anchor.

    Attributes:
        layout: "yolox": ``[dx, dy, log w, log h, object, class...]`` relative to grid cells; "yolov5":
            ``[x, y, w, h, object, class...]`` in pixels; "yolov8": ``[x, y, w, h, class...]`` in pixels, transposed.
        strides: Strides of the grids, for "yolox".
        output: Name of the output; None uses the first.
        score_floor: Detections with lower scores are ignored.
        overlap_limit: Overlap above which the box with the lower score is removed, within one class.
        most: Maximum number of detections.
    """

    layout: str = "yolox"
    strides: tuple[int, ...] = (8, 16, 32)
    output: str | None = None
    score_floor: float = 0.01
    overlap_limit: float = 0.65
    most: int = 300

    def __post_init__(self) -> None:
        known = ("yolox", "yolov5", "yolov8")
        if self.layout not in known:
            raise RecipeError(
                f"RowDecoder.layout must be one of {', '.join(known)}, got {self.layout!r}"
                f"{nearest_spelling(str(self.layout), known)}"
            )

    def __call__(self, outputs: Outputs, frame: tuple[int, int]) -> list[Detections]:
        """Return the detections of each image."""
        name = self.output if self.output is not None else next(iter(outputs))
        if name not in outputs:
            raise DataError(f"RowDecoder.output must be one of {list(outputs)}, got {name!r}")
        rows = outputs[name].astype(np.float64)
        if rows.ndim != 3:
            raise DataError(
                f"a detector's rows must have shape [images, anchors, values], got {list(rows.shape)}; output {name!r}"
            )
        if self.layout == "yolov8":
            rows = rows.transpose(0, 2, 1)
        return [self._one(image, frame) for image in rows]

    def _one(self, rows: NDArray[np.float64], frame: tuple[int, int]) -> Detections:
        chances = rows[:, 4:] if self.layout == "yolov8" else rows[:, 4:5] * rows[:, 5:]
        labels = chances.argmax(axis=1)
        scores = chances[np.arange(len(rows)), labels]
        # Comparisons with NaN are false, so a broken row is not a detection.
        good = np.flatnonzero((scores > self.score_floor) & np.isfinite(rows[:, :4]).all(axis=1))
        order = good[np.argsort(-scores[good], kind="stable")][:_BEFORE_SUPPRESSION]
        centre, size = self._boxes(rows, order, frame)
        boxes = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
        kept = suppress(boxes, labels[order], self.overlap_limit)[: self.most]
        return Detections(boxes[kept], scores[order][kept], labels[order][kept])

    def _boxes(
        self, rows: NDArray[np.float64], order: NDArray[np.int64], frame: tuple[int, int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.layout != "yolox":
            return rows[order, :2], rows[order, 2:4]
        cells, strides = grid(frame, self.strides)
        if len(cells) != len(rows):
            raise DataError(
                f"a yolox output for an input of {frame[0]} x {frame[1]} and strides {self.strides} must have "
                f"{len(cells)} rows, got {len(rows)}"
            )
        centre = (rows[order, :2] + cells[order]) * strides[order]
        return centre, np.exp(np.clip(rows[order, 2:4], *_LOG_SIZES)) * strides[order]


@dataclass(frozen=True)
class BoxDecoder:
    """Decoder for detectors that suppress duplicates themselves and return boxes, scores and labels.

    Attributes:
        boxes: Name of the output with corners x0, y0, x1, y1, [n, 4] or [1, n, 4].
        scores: Name of the output with confidences.
        labels: Name of the output with classes.
        first_label: Number of the first class; 1 if 0 is the background.
        normalized: Whether corners are in 0..1 instead of pixels.
    """

    boxes: str = "boxes"
    scores: str = "scores"
    labels: str = "labels"
    first_label: int = 0
    normalized: bool = False

    def __call__(self, outputs: Outputs, frame: tuple[int, int]) -> list[Detections]:
        """Return the detections of the one image."""
        for name in (self.boxes, self.scores, self.labels):
            if name not in outputs:
                raise DataError(f"BoxDecoder needs names of outputs ({', '.join(outputs)}), got {name!r}")
        corners = outputs[self.boxes].reshape(-1, 4).astype(np.float64)
        if self.normalized:
            corners = corners * np.array([frame[1], frame[0], frame[1], frame[0]], np.float64)
        scores = outputs[self.scores].reshape(-1).astype(np.float64)
        labels = outputs[self.labels].reshape(-1).astype(np.int64) - self.first_label
        good = np.isfinite(corners).all(axis=1) & np.isfinite(scores)
        return [Detections(corners[good], scores[good], labels[good])]


DECODERS: Mapping[str, Decoder] = {
    "yolox": RowDecoder("yolox"),
    "yolov5": RowDecoder("yolov5"),
    "yolov8": RowDecoder("yolov8"),
    "boxes": BoxDecoder(),
}
"""Decoders by name."""


def find_decoder(name: str) -> Decoder:
    """Return the decoder with this name.

    Raises:
        RecipeError: There is no such decoder; the message has the nearest spelling.
    """
    decoder = DECODERS.get(name.casefold())
    if decoder is None:
        raise RecipeError(
            f"a decoder must be one of {', '.join(DECODERS)}, got {name!r}{nearest_spelling(name, DECODERS)}"
        )
    return decoder


def grid(frame: tuple[int, int], strides: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cells [anchors, 2] as x, y and the strides [anchors, 1] of all grids, row by row."""
    cells, steps = [], []
    for stride in strides:
        rows, columns = frame[0] // stride, frame[1] // stride
        y, x = np.divmod(np.arange(rows * columns), columns)
        cells.append(np.stack([x, y], axis=1).astype(np.float64))
        steps.append(np.full((rows * columns, 1), float(stride)))
    return np.concatenate(cells), np.concatenate(steps)


@dataclass(frozen=True)
class ImageFit:
    """How an image was fitted into the model's input: ``x_model = x_image * ratio_x + left``, and the same for y.

    Attributes:
        ratio_x: Columns of the model's input per column of the image.
        ratio_y: The same for rows.
        left: Column of the input at which the image begins; negative if it was cropped.
        top: Row of the input at which the image begins.
    """

    ratio_x: float
    ratio_y: float
    left: int
    top: int

    @classmethod
    def of(cls, options: ImageOptions, width: int, height: int, frame: tuple[int, int]) -> "ImageFit":
        """Return how `quantry.data.images` fits an image into a frame.

        Args:
            options: How images become inputs.
            width: Columns of the image.
            height: Rows of the image.
            frame: Height and width of the model's input.
        """
        rows, columns = frame
        if options.resize == "stretch":
            return cls(columns / width, rows / height, 0, 0)
        if options.resize == "letterbox":
            ratio = min(columns / width, rows / height)
            new_width = min(columns, max(1, int(width * ratio)))
            new_height = min(rows, max(1, int(height * ratio)))
            centred = options.pad_position == "both"
            left, top = ((columns - new_width) // 2, (rows - new_height) // 2) if centred else (0, 0)
            # Not the rounded size divided by the original size: decoders divide by the exact ratio.
            return cls(ratio, ratio, left, top)
        ratio = max(columns / width, rows / height) / options.crop_fraction
        new_width, new_height = max(columns, round(width * ratio)), max(rows, round(height * ratio))
        return cls(ratio, ratio, -((new_width - columns) // 2), -((new_height - rows) // 2))

    def to_image(self, boxes: NDArray[np.float64], width: int, height: int) -> NDArray[np.float64]:
        """Return boxes in pixels of the image, clipped to its edges.

        Args:
            boxes: Corners [n, 4] in pixels of the input.
            width: Columns of the image.
            height: Rows of the image.
        """
        offset = np.array([self.left, self.top, self.left, self.top], np.float64)
        ratio = np.array([self.ratio_x, self.ratio_y, self.ratio_x, self.ratio_y], np.float64)
        edges = np.array([width, height, width, height], np.float64)
        inside: NDArray[np.float64] = np.clip((boxes - offset) / ratio, 0.0, edges)
        return inside
