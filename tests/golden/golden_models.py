"""A few tiny models and their data.

All numbers are small multiples of powers of two, so that every sum is exact in float32 and no digest depends on the
order in which a processor adds. The attention model is the exception: it is prepared and planned, but there are no
digests of its statistics.
"""

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

Sample = dict[str, np.ndarray]

CONV = """
<ir_version: 8, opset_import: ["" : 17]>
conv (float[1,2,4,4] x) => (float[1,3] y) {
    [conv] c = Conv<pads = [1,1,1,1]>(x, conv_w, conv_b)
    [norm] n = BatchNormalization<epsilon = 0.0>(c, gamma, beta, mean, variance)
    [relu] r = Relu(n)
    [point] d = Conv(r, point_w, point_b)
    [residual] a = Add(d, x)
    [pool] p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a)
    [flat] f = Flatten(p)
    [fc] y = Gemm<transB = 1>(f, fc_w, fc_b)
}
"""

UNEVEN = """
<ir_version: 8, opset_import: ["" : 17]>
uneven (float[1,2,4,4] x) => (float[1,2,4,4] y) {
    [wide] c = Conv(x, wide_w, wide_b)
    [relu] r = Relu(c)
    [narrow] y = Conv(r, narrow_w)
}
"""

ROUGH = """
<ir_version: 8, opset_import: ["" : 17]>
rough (float[1,2,4,4] x) => (float[1,3,4,4] y) {
    [first] c = Conv<pads = [1,1,1,1]>(x, first_w, first_b)
    [relu] r = Relu(c)
    [second] y = Conv(r, second_w, second_b)
}
"""

LOOPING = """
<ir_version: 8, opset_import: ["" : 17]>
looping (float[1,2,4,4] x) => (float[1,2,4,4] y) {
    count = Constant<value_int = 2>()
    [loop] y = Loop(count, , x) <body = rounds (int64 i, bool before, float[1,2,4,4] state)
            => (bool after, float[1,2,4,4] next) {
        [kept] after = Identity(before)
        [inner] c = Conv(state, inner_w)
        [relu] r = Relu(c)
        [residual] next = Add(r, x)
    }>
}
"""

RESIDUAL = """
<ir_version: 8, opset_import: ["" : 17]>
residual (float[1,3,2] x) => (float[1,3,2] y) {
    [first] a = MatMul(x, first_w)
    [second] b = MatMul(x, second_w)
    [sum] s = Add(a, b)
    [norm] n = LayerNormalization<axis = -1>(s, gain, shift)
    [layer] f = MatMul(n, layer_w)
    [biased] g = Add(f, layer_b)
    [next_sum] t = Add(n, g)
    [next_norm] m = LayerNormalization<axis = -1>(t, next_gain, next_shift)
    [last] y = MatMul(m, last_w)
}
"""

MOVEMENT = """
<ir_version: 8, opset_import: ["" : 17]>
movement (float[1,4,2,2] x) => (float[1,2,4,2] y, float[1,4,2,2] z) {
    [gate] g = HardSigmoid<alpha = 0.25, beta = 0.5>(x)
    [product] m = Mul(x, g)
    [halves] left, right = Split<axis = 1>(m)
    [up] u = Resize<mode = "nearest">(left, , factors)
    [cut] s = Slice(u, starts, ends, axes)
    [turned] t = Transpose<perm = [0,1,3,2]>(s)
    [joined] y = Concat<axis = 2>(right, t)
    [two] w = Add(g, one)
    [bound] v = Clip(w, low, high)
    [ratio] z = Div(x, v)
}
"""

ATTENTION = """
<ir_version: 9, opset_import: ["" : 20]>
attention (float[1,3,4] x) => (float[1,3,4] y) {
    [norm] n = LayerNormalization<axis = -1>(x, gain, shift)
    [query] q = MatMul(n, query_w)
    [key] k = MatMul(n, key_w)
    [turned] t = Transpose<perm = [0,2,1]>(k)
    [scores] s = MatMul(q, t)
    [masked] m = Where(mask, s, far)
    [attend] a = Softmax<axis = -1>(m)
    [mixed] v = MatMul(a, n)
    [gelu] e = Gelu(v)
    [residual] y = Add(x, e)
}
"""


def _dyadic(rng: np.random.Generator, shape: tuple[int, ...], step: float = 0.125) -> np.ndarray:
    return (rng.integers(-8, 9, shape) * step).astype(np.float32)


def _model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


def conv() -> onnx.ModelProto:
    """Two convolutions, folded BatchNormalization, residual, pooling and a classifier."""
    rng = np.random.default_rng(1)
    return _model(
        CONV,
        conv_w=_dyadic(rng, (2, 2, 3, 3)),
        conv_b=_dyadic(rng, (2,)),
        point_w=_dyadic(rng, (2, 2, 1, 1)),
        point_b=_dyadic(rng, (2,)),
        gamma=np.array([1, 2], np.float32),
        beta=np.array([0.5, -0.25], np.float32),
        mean=np.array([0.25, 1], np.float32),
        variance=np.array([4, 16], np.float32),
        fc_w=_dyadic(rng, (3, 8)),
        fc_b=_dyadic(rng, (3,)),
    )


def uneven() -> onnx.ModelProto:
    """Two convolutions whose channels differ in weights and biases, for rewrites of channels."""
    rng = np.random.default_rng(2)
    spread = (2.0 ** np.array([0, 3, -3, 0, 4, -4, 2, 0])).astype(np.float32)
    return _model(
        UNEVEN,
        wide_w=_dyadic(rng, (8, 2, 1, 1)) * spread[:, None, None, None],
        wide_b=np.float32(16) * spread,
        narrow_w=_dyadic(rng, (2, 8, 1, 1)) * spread[None, ::-1, None, None],
    )


def rough() -> onnx.ModelProto:
    """Two convolutions whose weights are not on the grid of four bits, for tuning."""
    rng = np.random.default_rng(5)
    shapes = {"first_w": (4, 2, 3, 3), "first_b": (4,), "second_w": (3, 4, 1, 1), "second_b": (3,)}
    # Multiples of 1/64: fine enough that rounding to four bits has a choice, and all sums are still exact.
    return _model(ROUGH, **{name: _rough(rng, shape) for name, shape in shapes.items()})


def looping() -> onnx.ModelProto:
    """A loop with a convolution in its body."""
    return _model(LOOPING, inner_w=_dyadic(np.random.default_rng(6), (2, 2, 1, 1)))


def _rough(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.integers(-64, 65, shape) / 64).astype(np.float32)


def residual() -> onnx.ModelProto:
    """Two sums that are normalized, for rotations: those of four channels have multiples of a half only."""
    rng = np.random.default_rng(7)
    shapes = {
        "first_w": (2, 4),
        "second_w": (2, 4),
        "gain": (4,),
        "shift": (4,),
        "layer_w": (4, 4),
        "layer_b": (4,),
        "next_gain": (4,),
        "next_shift": (4,),
        "last_w": (4, 2),
    }
    return _model(RESIDUAL, **{name: _dyadic(rng, shape) for name, shape in shapes.items()})


def movement() -> onnx.ModelProto:
    """Operators that move data, and a quotient that stays float."""
    return _model(
        MOVEMENT,
        factors=np.array([1, 1, 2, 2], np.float32),
        starts=np.array([0, 0], np.int64),
        ends=np.array([2, 2], np.int64),
        axes=np.array([2, 3], np.int64),
        one=np.array(1, np.float32),
        low=np.array(2, np.float32),
        high=np.array(2, np.float32),
    )


def attention() -> onnx.ModelProto:
    """One head with a mask."""
    rng = np.random.default_rng(3)
    return _model(
        ATTENTION,
        gain=np.ones(4, np.float32),
        shift=np.zeros(4, np.float32),
        query_w=_dyadic(rng, (4, 4)),
        key_w=_dyadic(rng, (4, 4)),
        mask=np.tril(np.ones((1, 3, 3), bool)),
        far=np.array(-np.inf, np.float32),
    )


MODELS = {"conv": conv, "movement": movement, "attention": attention}
EXACT = ("conv", "movement")
"""The models whose activations are exact."""


def samples(model: onnx.ModelProto, count: int = 3) -> list[Sample]:
    """Return samples of quarters between -4 and 4."""
    rng = np.random.default_rng(4)
    (value,) = model.graph.input
    shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return [{value.name: (rng.integers(-16, 17, shape) * 0.25).astype(np.float32)} for _ in range(count)]
