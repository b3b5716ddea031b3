"""The generator draws the same labelled pictures from the same seed."""

import hashlib
import math
import time

import numpy as np
import pytest

from quantry import demo
from quantry.demo.scenes import CALIBRATION_SEED, EVALUATION_SEED, SEEDS_PER_SPLIT, TRAINING_SEED, scenes
from quantry.demo.shapes import SHAPES
from quantry.errors import DataError

GOLDEN = {
    TRAINING_SEED: "b9bea0e09fb455ac9eb504463de191aaa04f62581332790a26037581b0ed83b6",
    CALIBRATION_SEED: "4a4ded4c8989bb34fcd95fc9c58a148892c0543738e6508173956b8f155819fa",
    EVALUATION_SEED: "fc1b8fe24ede3427088bb43a7e5bf275c5c28504089f996bcd2542dc0eb08129",
}


@pytest.mark.parametrize("seed", sorted(GOLDEN))
def test_a_seed_gives_the_same_picture_everywhere(seed: int) -> None:
    assert hashlib.sha256(demo.scene(seed).image.tobytes()).hexdigest() == GOLDEN[seed]


def test_boxes_lie_inside_the_image_and_labels_are_known() -> None:
    for drawn in demo.training_scenes(150):
        assert drawn.image.shape == (demo.IMAGE_SIZE, demo.IMAGE_SIZE, 3)
        assert (drawn.image.dtype, drawn.boxes.dtype, drawn.labels.dtype) == (np.uint8, np.float32, np.int64)
        assert drawn.boxes.shape == (len(drawn.labels), 4)
        assert len(drawn.labels) >= 1
        assert drawn.boxes.min() >= 0
        assert drawn.boxes.max() <= demo.IMAGE_SIZE
        assert (drawn.boxes[:, 2:] - drawn.boxes[:, :2]).min() > 3
        assert drawn.labels.min() >= 0
        assert drawn.labels.max() < len(demo.CLASS_NAMES)


def test_every_class_and_a_wide_range_of_sizes_appear() -> None:
    drawn = list(demo.evaluation_scenes(100))
    sides = np.concatenate([(s.boxes[:, 2:] - s.boxes[:, :2]).max(axis=1) for s in drawn])
    assert set(np.concatenate([s.labels for s in drawn]).tolist()) == set(range(len(demo.CLASS_NAMES)))
    assert sides.min() < 10
    assert sides.max() > 55


def test_splits_use_seeds_that_cannot_meet() -> None:
    firsts = sorted([TRAINING_SEED, CALIBRATION_SEED, EVALUATION_SEED])
    assert np.diff(firsts).min() >= SEEDS_PER_SPLIT
    for split, seed in (
        (demo.training_scenes, TRAINING_SEED),
        (demo.calibration_scenes, CALIBRATION_SEED),
        (demo.evaluation_scenes, EVALUATION_SEED),
    ):
        second = list(split(2))[1]
        np.testing.assert_array_equal(second.image, demo.scene(seed + 1).image)
    with pytest.raises(DataError, match="number of scenes"):
        demo.calibration_scenes(SEEDS_PER_SPLIT + 1)


def test_scenes_are_drawn_one_at_a_time() -> None:
    stream = scenes(10**9, 5)
    np.testing.assert_array_equal(next(stream).image, demo.scene(5).image)


def test_a_negative_seed_raises() -> None:
    with pytest.raises(DataError, match="got -1"):
        demo.scene(-1)


def test_drawing_takes_a_few_milliseconds_of_processor_time() -> None:
    begun = time.process_time()
    list(demo.evaluation_scenes(40))
    assert time.process_time() - begun < 40 * 0.02


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("angle", [0.0, 0.4, 1.3, 2.9])
def test_the_outline_bounds_what_is_drawn(shape, angle: float) -> None:
    ticks = np.linspace(-1.1, 1.1, 1101)
    x, y = np.meshgrid(ticks, ticks)
    cos, sin = math.cos(angle), math.sin(angle)
    inside = shape.distance(x * cos + y * sin, y * cos - x * sin) < 0
    drawn = [x[inside].min(), y[inside].min(), x[inside].max(), y[inside].max()]
    turned = shape.outline @ np.array([[cos, sin], [-sin, cos]])
    expected = [*turned.min(axis=0), *turned.max(axis=0)]
    # Thin tips of the star fall between the sample points.
    np.testing.assert_allclose(drawn, expected, atol=0.012)
