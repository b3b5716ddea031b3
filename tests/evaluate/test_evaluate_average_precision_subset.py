"""The average precision of a part of the images, for targets on which every image takes seconds."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.evaluate.tasks.average_precision import DetectionPrecision
from quantry.evaluate.tasks.detections import RowDecoder
from quantry.evaluate.tasks.labels import CocoLabels, LabelledBoxes
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source


def test_detections_are_scored_on_some_images(tmp_path: Path) -> None:
    boxes = np.array([[0.0, 0.0, 8.0, 8.0]])
    labels = CocoLabels(
        tuple(LabelledBoxes(Path(str(n)), 8, 8, boxes, np.array([0]), np.array([False])) for n in range(3)), ("thing",)
    )
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]> g (float[1, 1, 6] x) => (float[1, 1, 6] y) { y = Identity(x) }"""
    )
    rows = [np.array([[[4.0, 4.0, 8.0 * size, 8.0 * size, 1.0, 1.0]]], np.float32) for size in (1.0, 0.1, 1.0)]
    data = calibration_data([{"x": row} for row in rows], input_signatures(model_source(model).load()))
    evaluator = DetectionPrecision(
        SampleCache(data), labels, (8, 8), RowDecoder("yolov5"), ImageOptions(resize="stretch")
    )
    path = tmp_path / "rows.onnx"
    onnx.save(model, path)
    assert evaluator.scored_on(path, [0, 2]).value == pytest.approx(1.0)
    assert evaluator.scored_on(path, [1]).value == pytest.approx(0.0)
    assert 0.0 < evaluator(path) < 1.0
