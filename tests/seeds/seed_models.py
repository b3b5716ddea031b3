"""Small real models and data for the cases."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

CNN = """
<ir_version: 8, opset_import: ["" : 17]>
cnn (float[batch, 3, 8, 8] image) => (float[batch, 5] scores)
<float[4, 3, 3, 3] w1, float[4] b1, float[4, 1, 3, 3] w2, float[4] b2, float[4] bn_scale, float[4] bn_bias,
 float[4] bn_mean, float[4] bn_var, float[5, 4] w3, float[5] b3>
{
    c1 = Conv <pads: ints = [1, 1, 1, 1]> (image, w1, b1)
    n1 = BatchNormalization (c1, bn_scale, bn_bias, bn_mean, bn_var)
    low = Constant <value_float = 0.0> ()
    high = Constant <value_float = 6.0> ()
    r1 = Clip (n1, low, high)
    c2 = Conv <pads: ints = [1, 1, 1, 1], group: int = 4> (r1, w2, b2)
    r2 = Relu (c2)
    p1 = GlobalAveragePool (r2)
    f1 = Flatten (p1)
    scores = Gemm <transB: int = 1> (f1, w3, b3)
}
"""

PERCEPTRON = """
<ir_version: 8, opset_import: ["" : 17]>
perceptron (float[batch, 16] x) => (float[batch, 5] scores)
<float[16, 8] w1, float[8] b1, float[8, 5] w2>
{
    m1 = MatMul (x, w1)
    a1 = Add (m1, b1)
    r1 = Relu (a1)
    scores = MatMul (r1, w2)
}
"""

_SHAPES = {
    CNN: {
        "w1": (4, 3, 3, 3),
        "b1": (4,),
        "w2": (4, 1, 3, 3),
        "b2": (4,),
        "bn_scale": (4,),
        "bn_bias": (4,),
        "bn_mean": (4,),
        "bn_var": (4,),
        "w3": (5, 4),
        "b3": (5,),
    },
    PERCEPTRON: {"w1": (16, 8), "b1": (8,), "w2": (8, 5)},
}


def saved(folder: Path, text: str = CNN, name: str = "float.onnx") -> str:
    """Write a model with fixed random weights and return its path."""
    model = parser.parse_model(text)
    generator = np.random.default_rng(0)
    del model.graph.initializer[:]
    for weight, shape in _SHAPES[text].items():
        values = generator.normal(size=shape).astype(np.float32)
        values = np.abs(values) + 0.5 if weight in ("bn_var", "bn_scale") else values
        model.graph.initializer.append(numpy_helper.from_array(values, weight))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    path = folder / name
    onnx.save(model, path)
    return str(path)


def images(count: int = 4) -> list[dict[str, np.ndarray]]:
    """Samples for `CNN`."""
    generator = np.random.default_rng(1)
    return [{"image": generator.normal(size=(2, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


class Reader:
    """The smallest reader that onnxruntime's protocol allows."""

    def __init__(self, samples: list[dict[str, np.ndarray]] | None = None) -> None:
        self._rest = iter(images() if samples is None else samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rest, None)


def kinds(path: str | Path) -> set[tuple[str, str]]:
    """Domain and type of every node of a model."""
    return {(node.domain, node.op_type) for node in onnx.load(path).graph.node}


def constants(path: str | Path) -> dict[str, np.ndarray]:
    """Initializers of a model by name."""
    return {entry.name: numpy_helper.to_array(entry) for entry in onnx.load(path).graph.initializer}


def is_power_of_two(value: float) -> bool:
    """Whether a scale is a power of two."""
    return float(np.log2(value)).is_integer()


def outputs(path: str | Path, sample: dict[str, np.ndarray]) -> np.ndarray:
    """First output in stock onnxruntime, without optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, sample)[0]
