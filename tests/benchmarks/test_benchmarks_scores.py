import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks.accuracy.contestants import contestants, quick_contestants
from benchmarks.accuracy.detection import resampled_precision
from benchmarks.accuracy.leave_one_out import leave_one_out
from benchmarks.accuracy.quality_table import quality_table
from benchmarks.accuracy.score import bootstrap, interval, paired_interval
from benchmarks.accuracy.suites import SUITES
from benchmarks.accuracy.variants import VARIANTS, Variant
from scipy import stats

from quantry.recipe import PRESETS

IMAGES = 12


@pytest.fixture(scope="module")
def detections():
    from pycocotools.coco import COCO

    rng = np.random.default_rng(0)
    boxes = [(image, 1 + int(c), rng.uniform(0, 60, 4)) for image in range(IMAGES) for c in rng.integers(0, 3, 4)]
    truth = COCO()
    truth.dataset = {
        "images": [{"id": image} for image in range(IMAGES)],
        "categories": [{"id": c} for c in (1, 2, 3)],
        "annotations": [
            {"id": n + 1, "image_id": i, "category_id": c, "bbox": b.tolist(), "area": float(b[2] * b[3]), "iscrowd": 0}
            for n, (i, c, b) in enumerate(boxes)
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
    found = [
        {"image_id": i, "category_id": c, "bbox": (b * rng.uniform(0.8, 1.2, 4)).tolist(), "score": float(rng.random())}
        for i, c, b in boxes
    ]
    return truth, found


def test_precision_of_all_images_is_that_of_pycocotools(detections):
    from pycocotools.cocoeval import COCOeval

    truth, found = detections
    with contextlib.redirect_stdout(io.StringIO()):
        ours = resampled_precision(truth, list(range(IMAGES)), found)(np.arange(IMAGES))
        reference = COCOeval(truth, truth.loadRes(found), "bbox")
        reference.evaluate()
        reference.accumulate()
        reference.summarize()
    assert 0.05 < ours < 0.95
    assert ours == pytest.approx(reference.stats[0], abs=1e-12)


def test_precision_of_a_subset_is_that_of_pycocotools(detections):
    from pycocotools.cocoeval import COCOeval

    truth, found = detections
    with contextlib.redirect_stdout(io.StringIO()):
        ours = resampled_precision(truth, list(range(IMAGES)), found)(np.arange(5))
        reference = COCOeval(truth, truth.loadRes(found), "bbox")
        reference.params.imgIds = list(range(5))
        reference.evaluate()
        reference.accumulate()
        reference.summarize()
    assert ours == pytest.approx(reference.stats[0], abs=1e-12)


def test_interval_of_a_mean_agrees_with_scipy():
    hits = np.random.default_rng(0).random(500) < 0.7
    low, high = interval(bootstrap(500, 2000, lambda indices: hits[indices].mean()))
    expected = stats.bootstrap((hits,), np.mean, n_resamples=2000, method="percentile", rng=0).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_paired_interval_is_narrower_than_either():
    rng = np.random.default_rng(0)
    first = rng.random(400) < 0.7
    second = first ^ (rng.random(400) < 0.02)
    a, b = (list(bootstrap(400, 500, lambda i, hits=hits: hits[i].mean())) for hits in (first, second))
    paired, alone = paired_interval(b, a), interval(b)
    assert paired[1] - paired[0] < (alone[1] - alone[0]) / 2


def test_every_preset_takes_part():
    for suite in SUITES:
        labels = [contestant.label for contestant in contestants(suite.name)]
        assert labels[0] == "float"
        assert {"quantry XINT8", "quantry RECOMMENDED-NPU", "quantry search XINT8", "quark XINT8"} <= set(labels)
        assert len(set(labels)) == len(labels)
        assert len(quick_contestants(suite.name)) < len(labels)
    everybody = {contestant.label for contestant in contestants("cifar10")}
    assert {f"quantry {preset}" for preset in PRESETS} <= everybody


def test_quality_table_tells_values_and_failures():
    scores = {
        "float": {"value": 0.9, "interval": (0.8, 0.95), "difference_interval": (0.0, 0.0)},
        "quark A": {"failure": "boom"},
        "quantry A": {"value": 0.8, "interval": (0.7, 0.9), "difference_interval": (-0.15, -0.05)},
    }
    text = quality_table({"m": {"metric": "top-1", "scores": scores}})
    assert "fails: boom" in text
    assert "-0.1000" in text
    assert "-0.1500..-0.0500" in text


def test_constant_is_chosen_on_the_other_models_only():
    # The value "b" is far better on one model and a little worse on the two others.
    results = {"m1": {"a": 20.0, "b": 19.8}, "m2": {"a": 10.0, "b": 9.9}, "m3": {"a": 5.0, "b": 9.0}}
    decision = leave_one_out(results, "a")
    assert decision.chosen == {"m1": "b", "m2": "b", "m3": "a"}
    assert decision.gains == pytest.approx({"m1": -0.2, "m2": -0.1, "m3": 0.0})
    assert not decision.changes
    better = {name: {"a": own["a"], "b": own["a"] + 0.3} for name, own in results.items()}
    assert leave_one_out(better, "a").mean_gain == pytest.approx(0.3)
    assert leave_one_out(better, "a").changes


def test_table_shows_decibels_agreement_and_the_share_of_float():
    scores = {
        "float": {"value": 0.5, "interval": (0.4, 0.6), "difference_interval": (0.0, 0.0), "details": {}},
        "quantry auto vitisai": {
            "value": 0.492,
            "interval": (0.4, 0.6),
            "difference_interval": (-0.02, 0.0),
            "details": {"dB": 21.34, "agreement": 0.91},
        },
    }
    line = quality_table({"m": {"metric": "top-1", "scores": scores}}).splitlines()[-1]
    assert "98.4%" in line
    assert "21.3" in line
    assert "91.0%" in line
    assert "yes: >= 0.49" in line


@pytest.mark.parametrize("variant", VARIANTS)
def test_detections_on_changed_images_are_changed_back(variant: Variant) -> None:
    class Data:
        """One image with one bright box."""

        def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
            pixels = np.zeros((40, 60, 3), np.uint8)
            pixels[5:15, 10:30] = 255
            yield 7, pixels

        def evaluate(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return results

    data = variant.data_set(Data)()
    ((number, pixels),) = data
    rows, columns = np.nonzero(pixels[:, :, 0] == 255)
    x, y = int(columns.min()), int(rows.min())
    found = [x, y, int(columns.max()) + 1 - x, int(rows.max()) + 1 - y]
    (result,) = data.evaluate([{"image_id": number, "bbox": found, "score": 0.5}])
    assert result == {"image_id": 7, "bbox": [10, 5, 20, 10], "score": 0.5}
