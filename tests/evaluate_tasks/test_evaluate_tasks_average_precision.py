"""Average precision agrees with pycocotools."""

import contextlib
import io

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from quantry import demo
from quantry.errors import DataError
from quantry.evaluate.tasks.average_precision import MOST_DETECTIONS

CLASSES = 3
Image = tuple[demo.Detections, np.ndarray, np.ndarray]


def reference(images: list[Image], classes: int) -> tuple[float, float]:
    """The same mean average precision by pycocotools."""

    def annotations(parts):
        rows = []
        for image, (boxes, labels, scores) in enumerate(parts, start=1):
            for box, label, score in zip(boxes, labels, scores, strict=True):
                x0, y0, x1, y1 = (float(side) for side in box)
                shape = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "iscrowd": 0}
                rows.append({"id": len(rows) + 1, "image_id": image, "category_id": int(label), "score": score} | shape)
        return rows

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": index + 1} for index in range(len(images))],
            "categories": [{"id": label} for label in range(classes)],
            "annotations": annotations([(boxes, labels, [1.0] * len(labels)) for _, boxes, labels in images]),
        }
        truth.createIndex()
        found = COCO()
        found.dataset = truth.dataset | {
            "annotations": annotations([(f.boxes, f.labels, f.scores.tolist()) for f, _, _ in images])
        }
        found.createIndex()
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def random_image(rng: np.random.Generator, found: int, objects: int, *, ties: bool) -> Image:
    def corners(count: int) -> np.ndarray:
        low = rng.random((count, 2)) * 90
        return np.concatenate([low, low + 4 + rng.random((count, 2)) * 30], axis=1)

    truth = corners(objects).astype(np.float32)
    labels = rng.integers(0, CLASSES, objects)
    boxes, kinds = corners(found), rng.integers(0, CLASSES, found)
    if objects:
        # Most detections are near an object, or no threshold would ever be reached.
        near = rng.random(found) < 0.7
        of = rng.integers(0, objects, found)
        boxes[near] = truth[of[near]] + rng.uniform(-1.9, 1.9, (near.sum(), 4))  # a side of 4 stays a side
        kinds[near] = labels[of[near]]
    scores = rng.integers(0, 5, found) / 5 if ties else rng.random(found)
    return demo.Detections(boxes, scores, kinds), truth, labels


def ours(images: list[Image], classes: int) -> tuple[float, float]:
    result = demo.summarize([demo.match_image(*image, classes) for image in images])
    return result.map, result.map50


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 8), ties=st.booleans())
def test_random_detections_score_as_in_pycocotools(seed: int, count: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng, rng.integers(0, 30), rng.integers(0, 8), ties=ties) for _ in range(count)]
    images.append(random_image(rng, 5, 3, ties=ties))
    np.testing.assert_allclose(ours(images, CLASSES), reference(images, CLASSES), rtol=0, atol=1e-9)


def test_only_the_best_hundred_detections_of_a_class_count() -> None:
    rng = np.random.default_rng(3)
    images = [random_image(rng, 450, 6, ties=False) for _ in range(3)]
    assert max((image[0].labels == 0).sum() for image in images) > MOST_DETECTIONS
    np.testing.assert_allclose(ours(images, CLASSES), reference(images, CLASSES), rtol=0, atol=1e-9)


def test_the_shipped_detector_scores_as_in_pycocotools() -> None:
    session = onnxruntime.InferenceSession(demo.model_path())
    images = [
        (demo.decode(session.run(None, {demo.INPUT_NAME: demo.image_tensor(drawn)})[0])[0], drawn.boxes, drawn.labels)
        for drawn in demo.evaluation_scenes(25)
    ]
    classes = len(demo.CLASS_NAMES)
    np.testing.assert_allclose(ours(images, classes), reference(images, classes), rtol=0, atol=1e-6)


def test_perfect_detections_score_one_and_none_score_zero() -> None:
    _, boxes, labels = random_image(np.random.default_rng(0), 0, 6, ties=False)
    exact = demo.Detections(boxes.astype(np.float64), np.linspace(1, 0.5, 6), labels)
    assert ours([(exact, boxes, labels)], CLASSES) == (1.0, 1.0)
    nothing = demo.Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
    assert ours([(nothing, boxes, labels)], CLASSES) == (0.0, 0.0)


def test_matches_can_be_resampled() -> None:
    rng = np.random.default_rng(1)
    images = [random_image(rng, 10, 4, ties=False) for _ in range(6)]
    matches = [demo.match_image(*image, CLASSES) for image in images]
    again = [matches[index] for index in (0, 2, 2, 5)]
    expected = reference([images[index] for index in (0, 2, 2, 5)], CLASSES)
    assert demo.summarize(again).map == pytest.approx(expected[0], abs=1e-9)


def test_no_labelled_object_is_an_error() -> None:
    with pytest.raises(DataError, match="at least one labelled object"):
        demo.summarize([])
