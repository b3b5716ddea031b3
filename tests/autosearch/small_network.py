"""A small network, samples, an evaluator and a space."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from quantry.autosearch import Space
from quantry.recipe import CrossLayer, MinMax, MinMSE, Percentile, Recipe

TEXT = """
<ir_version: 8, opset_import: ["" : 13]>
net (float[1,3,6,6] x) => (float[1,8,6,6] y) {
    c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
    r = Relu(c)
    y = Conv(r, v)
}
"""


def write_network(path: Path) -> Path:
    """Write a network whose channels differ in range, so that configurations differ in quality."""
    generator = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in (("w", (8, 3, 3, 3)), ("b", (8,)), ("v", (8, 8, 1, 1))):
        spread = np.exp(generator.normal(size=(shape[0],) + (1,) * (len(shape) - 1)))
        values = (generator.normal(size=shape) * spread).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, path)
    return path


def random_samples(count: int, seed: int = 0) -> list[dict[str, NDArray[np.float32]]]:
    generator = np.random.default_rng(seed)
    return [{"x": generator.standard_normal((1, 3, 6, 6)).astype(np.float32)} for _ in range(count)]


class Distance:
    """Mean squared distance to the float model; less is better."""

    direction = "minimize"
    reference_score = 0.0

    def __init__(self, model: Path, size: int = 32) -> None:
        import onnxruntime

        self.samples = random_samples(size, seed=1)
        session = onnxruntime.InferenceSession(model)
        self.expected = [session.run(None, sample)[0] for sample in self.samples]
        self.seen = 0

    @property
    def size(self) -> int:
        return len(self.samples)

    def per_sample(self, model_path: Path, indices: Sequence[int]) -> list[float]:
        import onnxruntime

        session = onnxruntime.InferenceSession(model_path)
        self.seen += len(indices)
        return [
            float(((session.run(None, self.samples[index])[0] - self.expected[index]) ** 2).mean()) for index in indices
        ]

    def __call__(self, model_path: Path) -> float:
        return float(np.mean(self.per_sample(model_path, range(self.size))))


def small_space() -> Space:
    fields = {
        "scale.activation": [MinMax(), Percentile(99.0), MinMSE()],
        "equalize.cross_layer": [None, CrossLayer()],
        "scale.reduce_range": [False, True],
    }
    return Space.of(Recipe(), fields)


class VisibleDevice:
    """Scores a model by the CUDA device that its process sees."""

    fingerprint = "device"
    reference_score = 0.0

    def __call__(self, model_path: Path) -> float:
        return float(os.environ["CUDA_VISIBLE_DEVICES"])
