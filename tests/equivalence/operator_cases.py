"""One small graph for each common operator, as ONNX text with its constants."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

Constant = tuple[int, ...] | np.ndarray
"""The shape of a seeded random weight, or the values themselves."""


@dataclass(frozen=True)
class Case:
    """A graph from ``x`` to ``y``.

    Attributes:
        body: Its nodes.
        constants: Its initializers.
        inputs: Its inputs.
    """

    body: str
    constants: dict[str, Constant] = field(default_factory=dict)
    inputs: str = "float[1,4,8,8] x"


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


_CONV = {"w": (4, 4, 1, 1), "b": (4,)}
_BORDER = ints(0, 0, 1, 1, 0, 0, 1, 1)
_TWICE = np.array([1, 1, 2, 2], np.float32)

CASES: dict[str, Case] = {
    "Conv": Case("y = Conv<pads = [1,1,1,1]>(x, w, b)", {"w": (4, 4, 3, 3), "b": (4,)}),
    "Conv without bias": Case("y = Conv(x, w)", {"w": (4, 4, 3, 3)}),
    "depthwise Conv": Case("y = Conv<group = 4>(x, w, b)", {"w": (4, 1, 3, 3), "b": (4,)}),
    "Conv Relu": Case("t = Conv(x, w, b) y = Relu(t)", _CONV),
    "Conv Clip": Case("t = Conv(x, w, b) y = Clip(t, low, high)", {**_CONV, "low": number(0), "high": number(6)}),
    "Conv LeakyRelu": Case("t = Conv(x, w, b) y = LeakyRelu(t)", _CONV),
    "Conv read twice": Case("t = Conv(x, w, b) r = Relu(t) y = Add(t, r)", _CONV),
    "ConvTranspose": Case("y = ConvTranspose<strides = [2,2]>(x, w, b)", {"w": (4, 3, 2, 2), "b": (3,)}),
    "Gemm": Case("y = Gemm(x, w, b)", {"w": (6, 5), "b": (5,)}, "float[3,6] x"),
    "transposed Gemm": Case("y = Gemm<transB = 1>(x, w, b)", {"w": (5, 6), "b": (5,)}, "float[3,6] x"),
    "MatMul": Case("y = MatMul(x, w)", {"w": (8, 6)}),
    "MatMul of activations": Case("t = Transpose<perm = [0,1,3,2]>(x) y = MatMul(x, t)"),
    "Add": Case("s = Sigmoid(x) y = Add(x, s)"),
    "Add constant": Case("y = Add(x, c)", {"c": (4, 1, 1)}),
    "Mul": Case("s = Sigmoid(x) y = Mul(x, s)"),
    "Mul constant": Case("y = Mul(x, c)", {"c": (4, 1, 1)}),
    "Sub": Case("s = Sigmoid(x) y = Sub(x, s)"),
    "Div": Case("s = Sigmoid(x) y = Div(s, c)", {"c": np.array([[[2]], [[3]], [[4]], [[5]]], np.float32)}),
    "Relu": Case("y = Relu(x)"),
    "Clip": Case("y = Clip(x, low, high)", {"low": number(0), "high": number(1)}),
    "LeakyRelu": Case("y = LeakyRelu(x)"),
    "PRelu": Case("y = PRelu(x, c)", {"c": (4, 1, 1)}),
    "Sigmoid": Case("y = Sigmoid(x)"),
    "HardSigmoid": Case("y = HardSigmoid(x)"),
    "HardSwish": Case("y = HardSwish(x)"),
    "Tanh": Case("y = Tanh(x)"),
    "Softmax": Case("y = Softmax<axis = -1>(x)"),
    "MaxPool": Case("t = Sigmoid(x) y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(t)"),
    "AveragePool": Case("t = Sigmoid(x) y = AveragePool<kernel_shape = [2,2], strides = [2,2]>(t)"),
    "GlobalAveragePool": Case("t = Sigmoid(x) y = GlobalAveragePool(t)"),
    "ReduceMean": Case("t = Sigmoid(x) y = ReduceMean<axes = [2,3]>(t)"),
    "Concat": Case("s = Sigmoid(x) c = Concat<axis = 1>(x, s) y = LeakyRelu(c)"),
    "last Concat": Case("s = Sigmoid(x) y = Concat<axis = 1>(x, s)"),
    "Reshape": Case("t = Sigmoid(x) y = Reshape(t, shape)", {"shape": ints(1, -1)}),
    "Flatten": Case("t = Sigmoid(x) y = Flatten(t)"),
    "Transpose": Case("t = Sigmoid(x) y = Transpose<perm = [0,2,3,1]>(t)"),
    "Squeeze": Case("t = Sigmoid(x) y = Squeeze(t, axes)", {"axes": ints(0)}),
    "Unsqueeze": Case("t = Sigmoid(x) y = Unsqueeze(t, axes)", {"axes": ints(0)}),
    "movement of an input": Case("y = Reshape(x, shape)", {"shape": ints(1, -1)}),
    "Split": Case("t = Sigmoid(x) l, r = Split<axis = 1>(t) y = Mul(l, r)"),
    "Slice": Case("t = Sigmoid(x) y = Slice(t, a, b, c)", {"a": ints(0), "b": ints(2), "c": ints(1)}),
    "Gather": Case("t = Sigmoid(x) y = Gather<axis = 1>(t, i)", {"i": ints(0, 2)}),
    "Gather from a table": Case("y = Gather(w, i)", {"w": (8, 6)}, "int64[3] i"),
    "Pad": Case("t = Sigmoid(x) y = Pad(t, border)", {"border": _BORDER}),
    "Pad by reflection": Case('t = Sigmoid(x) y = Pad<mode = "reflect">(t, border)', {"border": _BORDER}),
    "Pad with a value": Case("t = Sigmoid(x) y = Pad(t, border, v)", {"border": _BORDER, "v": number(9)}),
    "nearest Resize": Case('t = Sigmoid(x) y = Resize<mode = "nearest">(t, , factors)', {"factors": _TWICE}),
    "linear Resize": Case('t = Sigmoid(x) y = Resize<mode = "linear">(t, , factors)', {"factors": _TWICE}),
    "DepthToSpace": Case("t = Sigmoid(x) y = DepthToSpace<blocksize = 2>(t)"),
    "SpaceToDepth": Case("t = Sigmoid(x) y = SpaceToDepth<blocksize = 2>(t)"),
    "Expand": Case("t = Sigmoid(x) y = Expand(t, shape)", {"shape": ints(2, 4, 8, 8)}),
    "Where": Case("s = Sigmoid(x) c = Less(x, s) y = Where(c, x, s)"),
    "Min": Case("s = Sigmoid(x) y = Min(x, s)"),
    "Max": Case("s = Sigmoid(x) y = Max(x, s)"),
    "LayerNormalization": Case("y = LayerNormalization<axis = -1>(x, g, b)", {"g": (8,), "b": (8,)}),
    "InstanceNormalization": Case("y = InstanceNormalization(x, g, b)", {"g": (4,), "b": (4,)}),
    "ArgMax": Case("t = Sigmoid(x) y = ArgMax<axis = 1>(t)"),
    "Exp": Case("t = Sigmoid(x) y = Exp(t)"),
    "Pow": Case("t = Sigmoid(x) y = Pow(t, two)", {"two": number(2)}),
}


def case_model(case: Case) -> onnx.ModelProto:
    """Return the case as a model whose shapes are inferred and whose nodes are named."""
    kind = "int64" if "ArgMax" in case.body else "float"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({case.inputs}) => ({kind} y) {{ {case.body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    for name, constant in case.constants.items():
        values = rng.normal(size=constant).astype(np.float32) if isinstance(constant, tuple) else constant
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    return onnx.shape_inference.infer_shapes(model)


def case_samples(model: onnx.ModelProto, count: int = 3) -> list[dict[str, np.ndarray]]:
    """Return seeded samples: normal numbers, and indices up to 4."""
    rng = np.random.default_rng(1)

    def array(value: onnx.ValueInfoProto) -> np.ndarray:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            return (1.7 * rng.normal(size=shape)).astype(np.float32)
        return rng.integers(0, 5, shape)

    return [{value.name: array(value) for value in model.graph.input} for _ in range(count)]
