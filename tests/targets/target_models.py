"""A small network with a dynamic batch and functions after its convolutions, and data for it."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quantry.targets import BACKENDS, Backend

_TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,3,8,8] x) => (float[n,5] y) {
    c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
    r1 = Clip (c1, low, high)
    s1 = Sigmoid (c1)
    m1 = Mul (r1, s1)
    c2 = Conv (m1, w2, b2)
    r2 = Relu (c2)
    a1 = Add (r2, m1)
    k1 = Concat <axis = 1> (a1, r2)
    p1 = GlobalAveragePool (k1)
    f1 = Flatten (p1)
    y = Gemm (f1, w3, b3)
}"""


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = parser.parse_model(_TEXT)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 1, 1), "b2": (8,), "w3": (16, 5), "b3": (5,)}
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    for name, array in {**weights, "low": np.array(0.0), "high": np.array(6.0)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def installed(name: str) -> Backend:
    """Return a backend, or skip the test and say what is missing."""
    backend = BACKENDS[name]
    if backend.version() is None:
        pytest.skip(f"{backend.product} is not installed: {backend.install}")
    return backend


def noise(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the signal-to-noise ratio in dB."""
    error = np.square(expected.astype(np.float64) - actual).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / max(error, 1e-20)))
