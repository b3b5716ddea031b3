"""A small network that the conformance suites quantize: one of each common layer, in milliseconds."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

_TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[N, 3, 8, 8] x) => (float[N, 5] y) {
    stem = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, stem_weight, stem_bias)
    active = Relu (stem)
    small_map = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (active)
    depthwise = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (small_map, depth_weight)
    gate = Sigmoid (depthwise)
    gated = Mul (depthwise, gate)
    total = Add (gated, small_map)
    joined = Concat <axis = 1> (total, gated)
    pooled = GlobalAveragePool (joined)
    flat = Flatten (pooled)
    y = Gemm <transB = 1> (flat, head_weight, head_bias)
}
"""

_SHAPES = {
    "stem_weight": (8, 3, 3, 3),
    "stem_bias": (8,),
    "depth_weight": (8, 1, 3, 3),
    "head_weight": (5, 16),
    "head_bias": (5,),
}


def small_model(seed: int = 0) -> onnx.ModelProto:
    """Return a classifier with convolutions, a gate, a sum, a join and a matrix product.

    Args:
        seed: Of the weights.
    """
    generator = np.random.default_rng(seed)
    model = onnx.parser.parse_model(_TEXT)
    for name, shape in _SHAPES.items():
        # He initialisation keeps activations of all layers at one size, so that 8 bits are enough everywhere.
        fan_in = int(np.prod(shape[1:])) or 1
        values = generator.normal(scale=np.sqrt(2 / fan_in) if len(shape) > 1 else 0.1, size=shape)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return model


def small_samples(count: int = 8, seed: int = 1) -> list[dict[str, NDArray[np.float32]]]:
    """Return calibration samples for `small_model`.

    Args:
        count: How many.
        seed: Of the random values.
    """
    generator = np.random.default_rng(seed)
    return [{"x": generator.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]
