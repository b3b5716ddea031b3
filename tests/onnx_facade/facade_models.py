"""Small models and data for the facades."""

from pathlib import Path

import numpy as np
import onnx
from onnx import parser

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
    s1 = Sigmoid (r2)
    m1 = Mul (r2, s1)
    a1 = Add (m1, r1)
    p1 = GlobalAveragePool (a1)
    f1 = Flatten (p1)
    scores = Gemm <transB: int = 1> (f1, w3, b3)
}
"""

SHAPES = {
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
}


def cnn() -> onnx.ModelProto:
    """Conv, BatchNormalization, Clip6, depthwise Conv, SiLU, Add, pool and Gemm."""
    model = parser.parse_model(CNN)
    generator = np.random.default_rng(0)
    del model.graph.initializer[:]
    for name, shape in SHAPES.items():
        values = generator.normal(size=shape).astype(np.float32)
        values = np.abs(values) + 0.5 if name in ("bn_var", "bn_scale") else values
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    onnx.checker.check_model(model, full_check=True)
    return model


def saved_cnn(folder: Path) -> str:
    """Write the model and return its path."""
    path = folder / "float.onnx"
    onnx.save(cnn(), path)
    return str(path)


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    """Calibration samples."""
    generator = np.random.default_rng(1)
    return [{"image": generator.normal(size=(2, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


class Reader:
    """The least that the protocol of onnxruntime asks for."""

    def __init__(self, data: list[dict[str, np.ndarray]] | None = None) -> None:
        self._rest = iter(samples() if data is None else data)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rest, None)


def operators(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """Domain and type of every node."""
    return {(node.domain, node.op_type) for node in model.graph.node}


def run(model: onnx.ModelProto | str, sample: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of a model in onnxruntime, without optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, sample)
