"""A seeded generator of labelled images: shapes among clutter, with noise and varying light.

A scene depends only on its seed. It uses uniform draws of PCG64 and plain float64 arithmetic, so the same seed gives
the same picture on every platform. Seeds for training, calibration and evaluation come from disjoint ranges.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantry.demo.shapes import SHAPES, Plane, Shape
from quantry.errors import DataError

IMAGE_SIZE = 128
CLASS_NAMES: tuple[str, ...] = tuple(shape.name for shape in SHAPES)

SEEDS_PER_SPLIT = 100_000_000
TRAINING_SEED = 0
CALIBRATION_SEED = SEEDS_PER_SPLIT
EVALUATION_SEED = 2 * SEEDS_PER_SPLIT

_MOST_OBJECTS = 8
_SMALLEST, _LARGEST = 9.0, 66.0
_MOST_HIDDEN = 0.45
_LEAST_CONTRAST = 45.0
_MARGIN = 3


@dataclass(frozen=True)
class Scene:
    """One labelled image.

    Attributes:
        image: RGB pixels, uint8 [IMAGE_SIZE, IMAGE_SIZE, 3].
        boxes: Corners x0, y0, x1, y1 in pixels, float32 [n, 4], inside the image.
        labels: Indices into CLASS_NAMES, int64 [n].
    """

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]


class _Dice:
    """Uniform draws of one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self._generator.random())

    def below(self, count: int) -> int:
        return int(self._generator.random() * count)

    def plane(self, *shape: int) -> Plane:
        return self._generator.random(shape)

    def colour(self) -> Plane:
        return self.plane(3) * 255.0


@dataclass(frozen=True)
class _Window:
    """The part of the image around a figure: pixel rows and columns, and the centres of its pixels."""

    rows: slice
    columns: slice
    x: Plane
    y: Plane


def _window(x0: float, y0: float, x1: float, y1: float) -> _Window:
    left, top = (max(0, math.floor(low) - _MARGIN) for low in (x0, y0))
    right, bottom = (min(IMAGE_SIZE, math.ceil(high) + _MARGIN) for high in (x1, y1))
    right, bottom = max(left, right), max(top, bottom)
    x = np.arange(left, right, dtype=np.float64)[None, :] + 0.5
    y = np.arange(top, bottom, dtype=np.float64)[:, None] + 0.5
    return _Window(slice(top, bottom), slice(left, right), x, y)


def _blend(canvas: Plane, window: _Window, cover: Plane, paint: Plane) -> None:
    """Paint over the canvas where cover [rows, columns] is 1; paint broadcasts to [rows, columns, 3]."""
    region = canvas[window.rows, window.columns]
    region += cover[..., None] * (paint - region)


def _soft(distance: Plane, softness: float) -> Plane:
    return np.clip(0.5 - distance / softness, 0.0, 1.0)


def _background(dice: _Dice) -> Plane:
    """Return a canvas [IMAGE_SIZE, IMAGE_SIZE, 3]: a gradient between two colours with a smooth texture."""
    ramp = (np.arange(IMAGE_SIZE, dtype=np.float64) + 0.5) / IMAGE_SIZE
    angle = dice.between(0.0, 2 * math.pi)
    slant = (ramp[None, :] - 0.5) * math.cos(angle) + (ramp[:, None] - 0.5) * math.sin(angle) + 0.5
    start = dice.colour()
    end = start + (dice.plane(3) - 0.5) * 160.0
    canvas = start + slant[..., None] * (end - start)
    cells = 3 + dice.below(14)
    grid = (dice.plane(cells + 1, cells + 1, 3) - 0.5) * dice.between(0.0, 90.0)
    position = ramp * cells
    cell = position.astype(np.int64)
    fraction = (position - cell)[:, None]
    across = grid[:, cell] * (1.0 - fraction) + grid[:, cell + 1] * fraction
    return canvas + across[cell] * (1.0 - fraction[..., None]) + across[cell + 1] * fraction[..., None]


def _line(canvas: Plane, dice: _Dice, thickest: float) -> None:
    """Draw a straight stroke between two points that may be outside the image."""
    x0, y0, x1, y1 = (dice.between(-20.0, IMAGE_SIZE + 20.0) for _ in range(4))
    half, softness, paint = dice.between(0.4, thickest) / 2, dice.between(0.8, 1.8), dice.colour()
    window = _window(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
    length = math.hypot(x1 - x0, y1 - y0) + 1e-9
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    along = (window.x - x0) * ux + (window.y - y0) * uy
    aside = (window.y - y0) * ux - (window.x - x0) * uy
    distance = np.maximum(np.abs(aside) - half, np.abs(along - length / 2) - length / 2)
    _blend(canvas, window, _soft(distance, softness), paint)


def _blob(canvas: Plane, dice: _Dice) -> None:
    """Draw a distractor: an ellipse or a bar that is too long for any class."""
    x, y = dice.between(0.0, IMAGE_SIZE), dice.between(0.0, IMAGE_SIZE)
    long = dice.between(5.0, 30.0)
    short = long / dice.between(2.2, 4.5)
    angle, softness, paint = dice.between(0.0, math.pi), dice.between(0.8, 3.0), dice.colour()
    window = _window(x - long * 1.5, y - long * 1.5, x + long * 1.5, y + long * 1.5)
    u, v = _turned(window, x, y, angle)
    if dice.below(2):
        distance = (np.sqrt((u / long) ** 2 + (v / short) ** 2) - 1.0) * short
    else:
        distance = np.maximum(np.abs(u) - long, np.abs(v) - short)
    _blend(canvas, window, _soft(distance, softness), paint)


def _turned(window: _Window, x: float, y: float, angle: float) -> tuple[Plane, Plane]:
    cos, sin = math.cos(angle), math.sin(angle)
    dx, dy = window.x - x, window.y - y
    return dx * cos + dy * sin, dy * cos - dx * sin


def _extent(shape: Shape, x: float, y: float, radius: float, angle: float) -> tuple[float, float, float, float]:
    cos, sin = math.cos(angle), math.sin(angle)
    u, v = shape.outline[:, 0] * radius, shape.outline[:, 1] * radius
    xs, ys = x + u * cos - v * sin, y + u * sin + v * cos
    return float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max())


def _hides_another(box: tuple[float, float, float, float], boxes: list[tuple[float, float, float, float]]) -> bool:
    for hidden in boxes:
        width = min(box[2], hidden[2]) - max(box[0], hidden[0])
        height = min(box[3], hidden[3]) - max(box[1], hidden[1])
        area = (hidden[2] - hidden[0]) * (hidden[3] - hidden[1])
        if width > 0 and height > 0 and width * height > _MOST_HIDDEN * area:
            return True
    return False


def _fill(dice: _Dice, around: Plane, u: Plane, v: Plane) -> Plane:
    """Return paint [rows, columns, 3] or [3] that contrasts with the surrounding colour [3]."""
    paint = dice.colour()
    while float(np.abs(paint - around).max()) < _LEAST_CONTRAST:
        paint = dice.colour()
    kind = dice.below(4)
    if kind == 0:
        return paint + (u * dice.between(-35.0, 35.0))[..., None]
    if kind == 1:
        pitch = dice.between(0.3, 0.8)
        stripe = np.abs((v / pitch) % 1.0 - 0.5) * 2.0
        return paint + stripe[..., None] * (dice.plane(3) - 0.5) * 70.0
    return paint


def _object(
    canvas: Plane, dice: _Dice, boxes: list[tuple[float, float, float, float]]
) -> tuple[tuple[float, float, float, float], int] | None:
    """Draw one labelled shape unless it would hide an earlier one; return its box and label."""
    label = dice.below(len(SHAPES))
    radius = _SMALLEST * (_LARGEST / _SMALLEST) ** dice.between(0.0, 1.0) / 2
    angle, softness = dice.between(0.0, 2 * math.pi), dice.between(0.8, 2.0)
    x, y = dice.between(0.04, 0.96) * IMAGE_SIZE, dice.between(0.04, 0.96) * IMAGE_SIZE
    x0, y0, x1, y1 = _extent(SHAPES[label], x, y, radius, angle)
    box = (max(0.0, x0), max(0.0, y0), min(float(IMAGE_SIZE), x1), min(float(IMAGE_SIZE), y1))
    visible = (box[2] - box[0]) * (box[3] - box[1]) / ((x1 - x0) * (y1 - y0))
    if visible < 1.0 - _MOST_HIDDEN or _hides_another(box, boxes):
        return None
    window = _window(*box)
    u, v = _turned(window, x, y, angle)
    u, v = u / radius, v / radius
    cover = _soft(SHAPES[label].distance(u, v) * radius, softness)
    around = canvas[min(int(y), IMAGE_SIZE - 1), min(int(x), IMAGE_SIZE - 1)].copy()
    _blend(canvas, window, cover, _fill(dice, around, u, v))
    return box, label


def _expose(canvas: Plane, dice: _Dice) -> NDArray[np.uint8]:
    """Change brightness and contrast, add sensor noise, and round to bytes."""
    lit = (canvas - 128.0) * dice.between(0.45, 1.25) + 128.0 + dice.between(-45.0, 45.0)
    # The sum of two uniform draws approximates a normal distribution without platform-dependent library functions.
    noise = dice.plane(*canvas.shape) + dice.plane(*canvas.shape) - 1.0
    noisy = lit + noise * dice.between(0.0, 40.0)
    return np.floor(np.clip(noisy, 0.0, 255.0) + 0.5).astype(np.uint8)


def scene(seed: int) -> Scene:
    """Draw the scene of one seed.

    Args:
        seed: Any non-negative integer.

    Returns:
        The image and its labels; every scene has at least one object.

    Raises:
        DataError: The seed is negative.

    Example:
        >>> scene(7).image.shape
        (128, 128, 3)
    """
    if seed < 0:
        raise DataError(f"a scene's seed must be 0 or more, got {seed}; in quantry.demo.scene")
    dice = _Dice(seed)
    canvas = _background(dice)
    for _ in range(dice.below(7)):
        _line(canvas, dice, 6.0)
    for _ in range(dice.below(6)):
        _blob(canvas, dice)
    object_count = 1 + dice.below(_MOST_OBJECTS)
    boxes: list[tuple[float, float, float, float]] = []
    labels: list[int] = []
    for attempt in range(4 * _MOST_OBJECTS):
        if len(boxes) >= object_count or (boxes and attempt >= 2 * _MOST_OBJECTS):
            break
        drawn = _object(canvas, dice, boxes)
        if drawn is not None:
            boxes.append(drawn[0])
            labels.append(drawn[1])
    for _ in range(dice.below(3)):
        _line(canvas, dice, 2.5)
    image = _expose(canvas, dice)
    return Scene(image, np.array(boxes, dtype=np.float32).reshape(-1, 4), np.array(labels, dtype=np.int64))


def scenes(count: int, seed: int) -> Iterator[Scene]:
    """Draw the scenes of ``count`` successive seeds, the first of which is ``seed``, one at a time."""
    return (scene(seed + index) for index in range(count))


def training_scenes(count: int) -> Iterator[Scene]:
    """Draw scenes for training only."""
    return _split(count, TRAINING_SEED)


def calibration_scenes(count: int) -> Iterator[Scene]:
    """Draw scenes for calibration: not used in training or evaluation."""
    return _split(count, CALIBRATION_SEED)


def evaluation_scenes(count: int) -> Iterator[Scene]:
    """Draw scenes for evaluation: not used in training or calibration."""
    return _split(count, EVALUATION_SEED)


def _split(count: int, seed: int) -> Iterator[Scene]:
    if not 0 <= count <= SEEDS_PER_SPLIT:
        raise DataError(f"a number of scenes must be 0 to {SEEDS_PER_SPLIT}, got {count}; in quantry.demo")
    return scenes(count, seed)
