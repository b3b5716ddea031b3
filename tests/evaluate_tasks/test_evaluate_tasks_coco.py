"""Labelled boxes: our own average precision, faster-coco-eval and pycocotools agree, crowds included."""

import contextlib
import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from quantry.data.images import ImageOptions
from quantry.errors import DataError, RecipeError
from quantry.evaluate.tasks import (
    CocoLabels,
    Detections,
    RowDecoder,
    coco_average_precision,
    coco_labels,
    detector_evaluator,
    find_decoder,
)
from quantry.evaluate.tasks.detections import ImageFit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images with random boxes, some of them crowds, in COCO's format."""
    rng = np.random.default_rng(7)
    (tmp_path / "images").mkdir()
    images, annotations = [], []
    for number in range(12):
        width, height = int(rng.integers(60, 120)), int(rng.integers(60, 120))
        name = f"{number:03d}.png"
        Image.new("RGB", (width, height)).save(tmp_path / "images" / name)
        images.append({"id": 100 + number, "file_name": name, "width": width, "height": height})
        for _ in range(int(rng.integers(0, 6))):
            side = (rng.random(2) * 30 + 8).tolist()
            corner = (rng.random(2) * 40).tolist()
            crowd = int(rng.random() < 0.2)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": 100 + number,
                    "category_id": int(rng.choice([3, 9])),
                    "bbox": [*corner, *side],
                    "area": side[0] * side[1],
                    "iscrowd": crowd,
                }
            )
    categories = [{"id": 9, "name": "cat"}, {"id": 3, "name": "dog"}]
    plain = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "instances.json").write_text(json.dumps(plain))
    return tmp_path


def near(labels: CocoLabels) -> list[Detections]:
    """Detections near the objects and in the crowds, and some elsewhere."""
    rng = np.random.default_rng(3)
    found = []
    for image in labels.images:
        boxes = np.repeat(image.boxes, 2, axis=0) + rng.uniform(-3, 3, (2 * len(image.boxes), 4))
        stray = np.sort(rng.random((3, 2, 2)) * 60, axis=1).reshape(3, 4)
        kinds = np.concatenate([np.repeat(image.labels, 2), rng.integers(0, 2, 3)])
        boxes = np.concatenate([boxes, stray])
        found.append(Detections(boxes, rng.random(len(boxes)), kinds))
    return found


def by_pycocotools(folder: Path, labels: CocoLabels, found: list[Detections]) -> tuple[float, float]:
    ids = {path.name: number for number, path in enumerate(sorted((folder / "images").iterdir()))}
    rows = [
        {
            "image_id": 100 + ids[image.file.name],
            "category_id": [3, 9][label],
            "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            "score": float(score),
        }
        for image, one in zip(labels.images, found, strict=True)
        for box, label, score in zip(one.boxes.tolist(), one.labels, one.scores, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "instances.json"))
        evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


@pytest.mark.parametrize("library", [True, False])
def test_average_precision_with_crowds_is_that_of_pycocotools(
    folder: Path, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library and importlib.util.find_spec("faster_coco_eval") is None:
        pytest.skip("the extra `detect` is not installed")
    if not library:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    labels = coco_labels(folder / "images", folder / "instances.json")
    assert labels.categories == ("dog", "cat")
    assert any(image.crowd.any() for image in labels.images)
    found = near(labels)
    ours = coco_average_precision(labels, found)
    assert 0.05 < ours.map < 0.95
    np.testing.assert_allclose((ours.map, ours.map50), by_pycocotools(folder, labels, found), atol=1e-9)


def test_images_that_the_file_does_not_know_are_skipped_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Image.new("RGB", (8, 8)).save(folder / "images" / "other.png")
    labels = coco_labels(folder / "images", folder / "instances.json")
    assert len(labels.images) == 12
    assert "1 of 13 images" in caplog.text


def test_images_of_one_name_in_two_folders_have_boxes_of_their_own(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / place / "1.png")
    images = [{"id": n, "file_name": f"{place}/1.png", "width": 8, "height": 8} for n, place in enumerate("ab")]
    notes = [{"image_id": n, "category_id": 1, "bbox": [n, n, 2, 2]} for n in range(2)]
    plain = {"images": images, "annotations": notes, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "labels.json").write_text(json.dumps(plain))
    assert [image.boxes[0, 0] for image in coco_labels(tmp_path, tmp_path / "labels.json").images] == [0.0, 1.0]


def test_files_that_are_no_coco_files_raise(folder: Path) -> None:
    (folder / "bad.json").write_text('{"images": []}')
    with pytest.raises(DataError, match="no annotations"):
        coco_labels(folder / "images", folder / "bad.json")
    for images, notes in (([{"id": 1}], []), ([], [{"image_id": 1}, 3])):
        (folder / "bad.json").write_text(json.dumps({"images": images, "annotations": notes, "categories": []}))
        with pytest.raises(DataError, match="a COCO file must have file_name and id for each image"):
            coco_labels(folder / "images", folder / "bad.json")
    (folder / "bad.json").write_text('{"images": [], "annotations": [], "categories": []}')
    with pytest.raises(DataError, match="got none of 12"):
        coco_labels(folder / "images", folder / "bad.json")


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (ImageOptions(resize="stretch"), (40, 80)),
        (ImageOptions(resize="letterbox"), (100, 30)),
        (ImageOptions(resize="letterbox", pad_position="both"), (100, 30)),
        (ImageOptions(resize="center-crop"), (100, 60)),
    ],
)
def test_a_fit_finds_where_a_bright_corner_of_the_image_went(options: ImageOptions, size: tuple[int, int]) -> None:
    from quantry.data.images import Frame, _fit

    width, height = size
    image = np.zeros((height, width, 3), np.uint8)
    x, y = width // 2 - 6, height // 2 - 6
    image[y : y + 12, x : x + 12] = 255
    frame = Frame(64, 64, 3, channels_first=True, integer=False, batched=True)
    fitted = np.asarray(_fit(Image.fromarray(image), options, frame))[:, :, 0] > 127
    columns, rows = np.flatnonzero(fitted.any(axis=0)), np.flatnonzero(fitted.any(axis=1))
    box = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], np.float64)
    back = ImageFit.of(options, width, height, (64, 64)).to_image(box, width, height)
    np.testing.assert_allclose(back, [[x, y, x + 12, y + 12]], atol=1.6)


def test_decoders_read_the_three_row_layouts_alike() -> None:
    rng = np.random.default_rng(0)
    frame, strides = (64, 32), (8, 16)
    count = 8 * 4 + 4 * 2
    rows = np.zeros((1, count, 7))
    rows[0, :, 5:] = rng.random((count, 2)) * 0.001
    rows[0, 32 + 5] = [0.5, 0.25, np.log(2), np.log(1.5), 0.9, 0.1, 0.8]  # stride 16, cell (1, 2)
    (yolox,) = RowDecoder("yolox", strides)({"rows": rows.astype(np.float32)}, frame)
    pixels = rows.copy()
    pixels[0, 32 + 5, :4] = [24, 36, 32, 24]
    (yolov5,) = RowDecoder("yolov5")({"rows": pixels}, frame)
    merged = np.concatenate([pixels[..., :4], pixels[..., 4:5] * pixels[..., 5:]], axis=-1).transpose(0, 2, 1)
    (yolov8,) = RowDecoder("yolov8")({"rows": merged}, frame)
    for found in (yolox, yolov5, yolov8):
        np.testing.assert_allclose(found.boxes, [[8, 24, 40, 48]], rtol=1e-5)
        np.testing.assert_allclose(found.scores, [0.72], rtol=1e-5)
        assert found.labels.tolist() == [1]


def test_decoders_refuse_what_does_not_fit() -> None:
    with pytest.raises(DataError, match="must have 336 rows, got 10"):
        RowDecoder()({"rows": np.zeros((1, 10, 7))}, (128, 128))
    with pytest.raises(DataError, match="shape"):
        RowDecoder()({"rows": np.zeros((10, 7))}, (128, 128))
    with pytest.raises(RecipeError, match="did you mean 'yolox'"):
        find_decoder("yolo-x")
    with pytest.raises(DataError, match="scores"):
        find_decoder("boxes")({"boxes": np.zeros((1, 4))}, (8, 8))


def test_a_model_with_boxes_of_its_own_is_evaluated_in_pixels_of_the_images(folder: Path) -> None:
    """A detector that always answers the first box of the first image with objects."""
    labels = coco_labels(folder / "images", folder / "instances.json")
    number = next(i for i, image in enumerate(labels.images) if (~image.crowd).any())
    image = labels.images[number]
    box = image.boxes[~image.crowd][0]
    fit = ImageFit.of(ImageOptions(resize="letterbox"), image.width, image.height, (64, 64))
    corners = (box * fit.ratio_x).astype(np.float32)
    kind = int(image.labels[~image.crowd][0])
    constants = {
        "boxes": (corners[None], 1),
        "scores": (np.array([0.9], np.float32), 1),
        "labels": (np.array([kind]), 7),
    }
    nodes = [
        helper.make_node("Constant", [], [f"{name}_"], value=onnx.numpy_helper.from_array(value, name))
        for name, (value, _) in constants.items()
    ]
    nodes += [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["none"]),
        helper.make_node("Add", ["boxes_", "none"], ["boxes"]),
        helper.make_node("Identity", ["scores_"], ["scores"]),
        helper.make_node("Identity", ["labels_"], ["labels"]),
    ]
    graph = helper.make_graph(
        nodes,
        "boxes",
        [helper.make_tensor_value_info("x", 1, [1, 3, 64, 64])],
        [helper.make_tensor_value_info(name, kind_, None) for name, (_, kind_) in constants.items()],
        [helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])],
    )
    path = folder / "boxes.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    evaluator = detector_evaluator(path, folder / "images", folder / "instances.json", decoder="boxes", kind="map50")
    found = evaluator.detect(path)
    np.testing.assert_allclose(found[number].boxes[0], box, atol=0.01)
    scored = evaluator.scored(path)
    assert scored.value == evaluator(path) == evaluator.measure(path).map50 > 0
    assert scored.interval is not None
    assert scored.interval[0] <= scored.value <= scored.interval[1]
    assert not hasattr(evaluator, "per_sample")
    again = detector_evaluator(path, folder / "images", folder / "instances.json", decoder="boxes")
    assert again.fingerprint != evaluator.fingerprint


def test_decoder_is_known_by_what_it_does_and_not_by_its_address(folder: Path) -> None:
    def made(floor: float) -> Callable[..., Any]:
        def decode(outputs: dict[str, Any], frame: tuple[int, int]) -> list[Detections]:
            return RowDecoder(score_floor=floor)(outputs, frame)

        return decode

    path = folder / "net.onnx"
    text = "net (float[1, 3, 64, 64] x) => (float[1, 3, 64, 64] y) { y = Relu (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {text}'), path)
    first, again, other = (
        detector_evaluator(path, folder / "images", folder / "instances.json", decoder=made(floor))
        for floor in (0.1, 0.1, 0.2)
    )
    assert first.decoder is not again.decoder
    assert first.fingerprint == again.fingerprint != other.fingerprint
