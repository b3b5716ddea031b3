"""The shipped detector is real: it detects, and it has what makes detectors hard to quantize."""

import collections
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from quantry import demo

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(demo.model_path())


@pytest.fixture(scope="module")
def run():
    session = onnxruntime.InferenceSession(demo.MODEL_PATH)
    return lambda images: session.run(None, {demo.INPUT_NAME: images})[0]


def test_it_detects(run) -> None:
    scores = demo.evaluate(run, count=60)
    assert set(scores) == {"map", "map50"}
    assert scores["map"] > 0.8
    assert scores["map50"] > 0.93


def test_it_fits_in_the_package(model: onnx.ModelProto) -> None:
    weights = sum(numpy_helper.to_array(tensor).size for tensor in model.graph.initializer)
    assert demo.model_path().stat().st_size <= 3 * 2**20
    assert 200_000 < weights < 800_000
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
    onnx.checker.check_model(model, full_check=True)


def test_it_has_the_parts_of_a_real_detector(model: onnx.ModelProto) -> None:
    kinds = collections.Counter(node.op_type for node in model.graph.node)
    groups = [a.i for node in model.graph.node for a in node.attribute if a.name == "group"]
    assert sum(group > 1 for group in groups) > 15
    assert kinds["BatchNormalization"] > 50
    assert {"Add", "Concat", "MaxPool", "Mul", "Reshape", "Resize", "Sigmoid", "Transpose"} <= set(kinds)
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_calibration_inputs_fit_the_model_and_batches_are_free(run) -> None:
    inputs = demo.calibration_inputs(3)
    assert [list(item) for item in inputs] == [[demo.INPUT_NAME]] * 3
    assert {(item[demo.INPUT_NAME].shape, str(item[demo.INPUT_NAME].dtype)) for item in inputs} == {
        ((1, 3, demo.IMAGE_SIZE, demo.IMAGE_SIZE), "float32")
    }
    images = [item[demo.INPUT_NAME] for item in inputs]
    single = np.concatenate([run(image) for image in images])
    np.testing.assert_allclose(run(np.concatenate(images)), single, atol=1e-3)


def test_the_example_exports_what_torch_computes(tmp_path: Path) -> None:
    import torch

    spec = importlib.util.spec_from_file_location("train_detector", ROOT / "examples" / "train_detector.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    detector = example.Detector().eval()
    onnx.save(example.Exporter(detector).model(), tmp_path / "d.onnx")
    images = np.random.default_rng(0).random((1, 3, 128, 128), dtype=np.float32) * 255
    session = onnxruntime.InferenceSession(tmp_path / "d.onnx")
    with torch.no_grad():
        expected = detector(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(session.run(None, {"images": images})[0], expected, atol=1e-4)
