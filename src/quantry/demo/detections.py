"""Decode the demo detector's output to boxes with scores and labels.

The detector's output is like YOLOX before decoding: one row per anchor, ``[dx, dy, log w, log h, object, class...]``,
first the stride-4 grid row by row, then stride 8, then stride 16. With grid cell (i, j) and stride s the box is

    centre = ((i + dx) s, (j + dy) s)      size = (s exp(log w), s exp(log h))      score = object * class
"""

import numpy as np
from numpy.typing import NDArray

from quantry.demo.scenes import CLASS_NAMES, IMAGE_SIZE
from quantry.errors import DataError
from quantry.evaluate.tasks import Detections, suppress

STRIDES = (4, 8, 16)
SCORE_FLOOR = 0.01
OVERLAP_LIMIT = 0.65
MOST_DETECTIONS = 100

_BEFORE_SUPPRESSION = 400
# Limits for log sizes: their exp covers every useful box and cannot overflow, whatever a badly quantized model returns.
_LOG_SIZES = (-8.0, 8.0)


def _anchors() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cells [anchors, 2] as x, y and the strides [anchors, 1]."""
    cells, strides = [], []
    for stride in STRIDES:
        side = IMAGE_SIZE // stride
        y, x = np.divmod(np.arange(side * side), side)
        cells.append(np.stack([x, y], axis=1).astype(np.float64))
        strides.append(np.full((side * side, 1), float(stride)))
    return np.concatenate(cells), np.concatenate(strides)


def _decode_one(rows: NDArray[np.float64]) -> Detections:
    chances = rows[:, 4:5] * rows[:, 5:]
    labels = chances.argmax(axis=1)
    scores = chances[np.arange(len(rows)), labels]
    # Comparisons with NaN are false, so a broken row is not a detection.
    good = np.flatnonzero((scores > SCORE_FLOOR) & np.isfinite(rows[:, :4]).all(axis=1))
    order = good[np.argsort(-scores[good], kind="stable")][:_BEFORE_SUPPRESSION]
    cells, strides = _anchors()
    centre = (rows[order, :2] + cells[order]) * strides[order]
    half = np.exp(np.clip(rows[order, 2:4], *_LOG_SIZES)) * strides[order] / 2
    boxes = np.clip(np.concatenate([centre - half, centre + half], axis=1), 0.0, float(IMAGE_SIZE))
    selected = suppress(boxes, labels[order], OVERLAP_LIMIT)[:MOST_DETECTIONS]
    return Detections(boxes[selected], scores[order][selected], labels[order][selected])


def decode(output: NDArray[np.floating]) -> list[Detections]:
    """Decode the detector's output [n, anchors, 5 + classes], one entry per image.

    Raises:
        DataError: The output does not have the demo detector's shape.
    """
    rows = sum((IMAGE_SIZE // stride) ** 2 for stride in STRIDES)
    if output.ndim != 3 or output.shape[1:] != (rows, 5 + len(CLASS_NAMES)):
        raise DataError(
            f"the detector's output must have shape [n, {rows}, {5 + len(CLASS_NAMES)}], got {list(output.shape)}; "
            "in quantry.demo.decode"
        )
    return [_decode_one(image.astype(np.float64)) for image in output]
