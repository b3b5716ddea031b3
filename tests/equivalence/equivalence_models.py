"""Two small models with the structure of large ones, and their data."""

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

CNN = """
<ir_version: 8, opset_import: ["" : 17]>
cnn (float[N,3,16,16] image) => (float[N,5] classes, float[N,2,8,8] heat) {
    [stem] stem_out = Conv<pads = [1,1,1,1], strides = [2,2]>(image, stem_w)
    [stem_bn] normal = BatchNormalization(stem_out, gamma, beta, mean, variance)
    [stem_sigmoid] gate = Sigmoid(normal)
    [stem_silu] stem = Mul(normal, gate)
    [depthwise] wide = Conv<group = 8, pads = [1,1,1,1]>(stem, depth_w, depth_b)
    [depth_relu] depth = Relu(wide)
    [pointwise] point = Conv(depth, point_w, point_b)
    [residual] block = Add(point, stem)
    [down] down_out = Conv<pads = [1,1,1,1], strides = [2,2]>(block, down_w, down_b)
    [down_leaky] deep = LeakyRelu<alpha = 0.1>(down_out)
    [up] up = Resize<mode = "nearest">(deep, , factors)
    [join] joined = Concat<axis = 1>(up, block)
    [head] head_out = Conv(joined, head_w, head_b)
    [head_sigmoid] heat = Sigmoid(head_out)
    [pool] pooled = GlobalAveragePool(joined)
    [flat] flat = Flatten(pooled)
    [fc] classes = Gemm<transB = 1>(flat, fc_w, fc_b)
}
"""
CNN_SHAPES = {
    "stem_w": (8, 3, 3, 3),
    "gamma": (8,),
    "beta": (8,),
    "mean": (8,),
    "depth_w": (8, 1, 3, 3),
    "depth_b": (8,),
    "point_w": (8, 8, 1, 1),
    "point_b": (8,),
    "down_w": (12, 8, 3, 3),
    "down_b": (12,),
    "head_w": (2, 20, 1, 1),
    "head_b": (2,),
    "fc_w": (5, 20),
    "fc_b": (5,),
}

TRANSFORMER = """
<ir_version: 9, opset_import: ["" : 20]>
transformer (float[N,6,16] tokens) => (float[N,6,16] features) {
    [norm1] n1 = LayerNormalization<axis = -1>(tokens, gain1, shift1)
    [query] q0 = MatMul(n1, query_w)
    [query_bias] q1 = Add(q0, query_b)
    [key] k0 = MatMul(n1, key_w)
    [value] v0 = MatMul(n1, value_w)
    [split_q] q2 = Reshape(q1, heads)
    [split_k] k2 = Reshape(k0, heads)
    [split_v] v2 = Reshape(v0, heads)
    [turn_q] q3 = Transpose<perm = [0,2,1,3]>(q2)
    [turn_k] k3 = Transpose<perm = [0,2,3,1]>(k2)
    [turn_v] v3 = Transpose<perm = [0,2,1,3]>(v2)
    [scores] s0 = MatMul(q3, k3)
    [scaled] s1 = Div(s0, root)
    [attention] s2 = Softmax<axis = -1>(s1)
    [mixed] m0 = MatMul(s2, v3)
    [turn_back] m1 = Transpose<perm = [0,2,1,3]>(m0)
    [merge] m2 = Reshape(m1, merged)
    [project] m3 = MatMul(m2, project_w)
    [residual1] r1 = Add(tokens, m3)
    [norm2] n2 = LayerNormalization<axis = -1>(r1, gain2, shift2)
    [expand] e0 = MatMul(n2, expand_w)
    [gelu] e1 = Gelu(e0)
    [contract] e2 = MatMul(e1, contract_w)
    [residual2] features = Add(r1, e2)
}
"""
TRANSFORMER_SHAPES = {
    "gain1": (16,),
    "shift1": (16,),
    "query_w": (16, 16),
    "query_b": (16,),
    "key_w": (16, 16),
    "value_w": (16, 16),
    "project_w": (16, 16),
    "gain2": (16,),
    "shift2": (16,),
    "expand_w": (16, 32),
    "contract_w": (32, 16),
}


def with_weights(text: str, shapes: dict[str, tuple[int, ...]], seed: int) -> onnx.ModelProto:
    """Parse a graph and add seeded weights that keep activations near one."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        fan_in = max(1, int(np.prod(shape[1:])))
        weight = (rng.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


def with_constants(model: onnx.ModelProto, **constants: np.ndarray) -> onnx.ModelProto:
    """Add initializers to a model."""
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def cnn() -> onnx.ModelProto:
    """A small detector: BatchNorm, SiLU, depthwise, residual, neck with Resize and Concat, two heads."""
    return with_constants(
        with_weights(CNN, CNN_SHAPES, seed=3),
        variance=np.linspace(0.5, 2, 8, dtype=np.float32),
        factors=np.array([1, 1, 2, 2], np.float32),
    )


def transformer() -> onnx.ModelProto:
    """One pre-norm block with two attention heads."""
    return with_constants(
        with_weights(TRANSFORMER, TRANSFORMER_SHAPES, seed=4),
        heads=np.array([0, 6, 2, 8], np.int64),
        merged=np.array([0, 6, 16], np.int64),
        root=np.array(np.sqrt(8), np.float32),
    )


def samples(model: onnx.ModelProto, count: int = 3, batch: int = 2) -> list[dict[str, np.ndarray]]:
    """Return seeded samples for the model's only input, whose symbolic axis is the batch."""
    rng = np.random.default_rng(5)
    (value,) = model.graph.input
    shape = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
    return [{value.name: rng.normal(size=shape).astype(np.float32)} for _ in range(count)]
