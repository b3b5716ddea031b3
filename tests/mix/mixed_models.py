"""A small network with one layer that suffers under few bits, and samples for it."""

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,10,10] x) => (float[N,4] classes, float[N,6,10,10] map) {
    [first] a = Conv<pads = [1,1,1,1]>(x, first_w, first_b)
    [relu] b = Relu(a)
    [wide] c = Conv(b, wide_w, wide_b)
    [gate] d = Sigmoid(c)
    [silu] e = Mul(c, d)
    [last] map = Conv<pads = [1,1,1,1]>(e, last_w, last_b)
    [pool] f = GlobalAveragePool(map)
    [flat] g = Flatten(f)
    [fc] classes = Gemm<transB = 1>(g, fc_w, fc_b)
}
"""
SHAPES = {"first_w": (6, 3, 3, 3), "wide_w": (6, 6, 1, 1), "last_w": (6, 6, 3, 3), "fc_w": (4, 6)}


def network() -> onnx.ModelProto:
    """Return the network; two weights of `wide` are outliers, which leaves the others few levels."""
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        weight = rng.normal(size=shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        if name == "wide_w":
            weight[0, :2] *= 60
        bias = rng.normal(size=shape[0]).astype(np.float32) / 10
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
        model.graph.initializer.append(numpy_helper.from_array(bias, name.replace("_w", "_b")))
    return model


def samples(count: int = 6) -> list[dict[str, np.ndarray]]:
    """Return random images."""
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(2, 3, 10, 10)).astype(np.float32)} for _ in range(count)]
