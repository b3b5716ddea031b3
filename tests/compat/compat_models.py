"""A small model."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
cnn (float[batch, 3, 8, 8] image) => (float[batch, 5] scores)
<float[4, 3, 3, 3] w1, float[4] b1, float[5, 4] w2, float[5] b2>
{
    c1 = Conv <pads: ints = [1, 1, 1, 1]> (image, w1, b1)
    r1 = Relu (c1)
    p1 = GlobalAveragePool (r1)
    f1 = Flatten (p1)
    scores = Gemm <transB: int = 1> (f1, w2, b2)
}
"""


def saved_model(folder: Path) -> Path:
    model = parser.parse_model(TEXT)
    del model.graph.initializer[:]
    generator = np.random.default_rng(0)
    for name, shape in {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (5, 4), "b2": (5,)}.items():
        model.graph.initializer.append(numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name))
    for node, name in zip(model.graph.node, ("conv", "relu", "pool", "flatten", "fc"), strict=True):
        node.name = name
    path = folder / "float.onnx"
    onnx.save(model, path)
    return path
