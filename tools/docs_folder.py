"""The small models and data that the code of the documentation runs on: model.onnx, images/, labels.csv and others."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper
from PIL import Image

CLASSES = 10
_SIZE = 32
_CLASSIFIER = """
<ir_version: 8, opset_import: ["": 17]> net (float[1,3,32,32] images) => (float[1,10] scores)
{ a = Conv<pads=[1,1,1,1], strides=[2,2]>(images, w1, b1)  ar = Relu(a)
  c = Conv<pads=[1,1,1,1], strides=[2,2]>(ar, w2, b2)  cr = Relu(c)
  p = GlobalAveragePool(cr)  f = Flatten(p)  scores = Gemm(f, w3, b3) }
"""
_SEARCH = """
model: model.onnx
data: calib/
evaluation_data: val/
labels: val.csv
metric: top5
images: {scale: 1/255}
n_trials: 1
output_dir: from_file
"""
# A detector with one anchor per cell: box, objectness and two classes, as YOLOX writes them.
_DETECTOR = """
<ir_version: 8, opset_import: ["": 17]> net (float[1,3,64,64] images) => (float[1,84,7] rows)
{ s8 = Conv<strides=[8,8]>(images, v1, d1)  s16 = Conv<strides=[2,2]>(s8, v2, d2)
  s32 = Conv<strides=[2,2]>(s16, v2, d2)
  r8 = Reshape(s8, shape)  r16 = Reshape(s16, shape)  r32 = Reshape(s32, shape)
  j = Concat<axis=2>(r8, r16, r32)  t = Transpose<perm=[0,2,1]>(j)
  box, odds = Split<axis=2>(t, parts)  unit = Sigmoid(odds)  rows = Concat<axis=2>(box, unit) }
"""


def prepare(folder: Path) -> None:
    """Fill a folder with what the documentation's code reads.

    Args:
        folder: An empty folder.
    """
    rng = np.random.default_rng(0)
    onnx.save(_network(_CLASSIFIER, _classifier_weights(rng)), folder / "model.onnx")
    for name in ("images", "photos", "calib", "val"):
        _pictures(folder / name, rng)
    rows = [f"{path.name},{number % CLASSES}" for number, path in enumerate(sorted((folder / "images").glob("*.png")))]
    for name in ("labels.csv", "val.csv"):
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    pictures = rng.random((72, 3, _SIZE, _SIZE), np.float32)
    np.save(folder / "images.npy", pictures)
    np.save(folder / "labels.npy", _answers(folder / "model.onnx", pictures))
    (folder / "search.yaml").write_text(_SEARCH, encoding="utf-8")
    _class_folders(folder / "by_class", rng)
    _detection(folder / "detection", rng)


def prepare_results(folder: Path) -> None:
    """Add what earlier commands of a user left: quantized models and the folders of searches.

    Args:
        folder: What `prepare` filled.
    """
    import quantry
    from quantry.cli.app import app

    pictures = np.load(folder / "images.npy")[:8]
    result = quantry.quantize(folder / "model.onnx", pictures, "XINT8", store=None)
    for name in ("model.int8.onnx", "other.int8.onnx"):
        result.save(folder / name)
    for name in ("quantry_search", "first_search", "second_search"):
        words = ["search", str(folder / "model.onnx"), "--data", str(folder / "images"), "--pixel-scale", "1/255"]
        app([*words, "--n-trials", "1", "-q", "-o", str(folder / name)], standalone_mode=False)


def _answers(model: Path, pictures: np.ndarray) -> np.ndarray:
    """Return what the model says, so that it is right about most pictures."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.array([session.run(None, {"images": picture[None]})[0].argmax() for picture in pictures])


def _classifier_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"w1": (16, 3, 3, 3), "w2": (32, 16, 3, 3), "w3": (32, CLASSES)}
    arrays = {name: rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:4]) / 2) for name, shape in shapes.items()}
    biases = {"b1": 16, "b2": 32, "b3": CLASSES}
    return {**arrays, **{name: rng.standard_normal(length) / 10 for name, length in biases.items()}}


def _network(text: str, arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.int64 if array.dtype.kind == "i" else np.float32), name)
        for name, array in arrays.items()
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}{number}"
    return model


def _pictures(folder: Path, rng: np.random.Generator, side: int = _SIZE, count: int = 12) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / f"{number:03}.png" for number in range(count)]
    for path in paths:
        coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(path)
    return paths


def _class_folders(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir()
    (folder / "model.onnx").write_bytes((folder.parent / "model.onnx").read_bytes())
    for number in range(CLASSES):
        _pictures(folder / "images" / f"{number}", rng, count=2)


def _detection(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir()
    arrays = {
        "v1": rng.standard_normal((7, 3, 8, 8)) / 14,
        "v2": rng.standard_normal((7, 7, 2, 2)) / 5,
        "d1": np.zeros(7),
        "d2": np.zeros(7),
        "shape": np.array([1, 7, -1]),
        "parts": np.array([4, 3]),
    }
    onnx.save(_network(_DETECTOR, arrays), folder / "model.onnx")
    paths = _pictures(folder / "images", rng, side=64)
    box = {"category_id": 1, "bbox": [8, 8, 24, 24], "area": 576, "iscrowd": 0}
    boxes = [{"id": number, "image_id": number, **box} for number in range(len(paths))]
    labels = {
        "images": [{"id": n, "file_name": path.name, "width": 64, "height": 64} for n, path in enumerate(paths)],
        "annotations": boxes,
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    }
    (folder / "instances.json").write_text(json.dumps(labels), encoding="utf-8")
