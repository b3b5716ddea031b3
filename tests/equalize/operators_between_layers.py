"""Models with every operator that channels meet between two layers, and what each equalization does with them.

``PYTHONPATH=tests python tests/equalize/operators_between_layers.py`` writes which of them change which case.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from onnx_oracle import run
from quantry.data.open_data import calibration_data
from quantry.equalize import (
    WeightActivationTypes,
    equalize,
    equalize_jointly,
    fit_powers,
    group_channels,
    joint_needs,
    rotate,
    smooth,
    smooth_needs,
)
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.memo import fingerprint
from quantry.observe import observe
from quantry.prepare import prepare
from quantry.recipe import (
    ChannelGroups,
    CrossLayer,
    EqualizeOptions,
    FitPowers,
    JointEqualization,
    ObserveOptions,
    OwnBias,
    PowerOfTwoScale,
    PrepareOptions,
    Rotation,
    SmoothQuant,
    TensorSpec,
)

FILE = Path(__file__).with_suffix(".txt")
Samples = list[dict[str, np.ndarray]]


@dataclass(frozen=True)
class Case:
    """Nodes from ``x`` to ``y``.

    Attributes:
        body: The nodes.
        constants: Shapes of random constants, or the values themselves.
        shape: Shape of ``x``.
    """

    body: str
    constants: dict[str, tuple[int, ...] | np.ndarray] = field(default_factory=dict)
    shape: tuple[int, ...] = (1, 4, 8, 8)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


LAYER = "l = Conv(x, w, b) "
WEIGHTS: dict[str, tuple[int, ...] | np.ndarray] = {"w": (4, 4, 1, 1), "b": (4,)}
_DIVISORS = np.array([[[2]], [[3]], [[4]], [[5]]], np.float32)
CASES = {
    "residual": Case(LAYER + "r = Relu(l) y = Add(r, x)", WEIGHTS),
    "residual two": Case(
        LAYER + "r = Relu(l) s = Add(r, x) q = Conv(s, v, d) y = Add(s, q)", {**WEIGHTS, "v": (4, 4, 1, 1), "d": (4,)}
    ),
    "silu": Case("g = Sigmoid(x) y = Mul(x, g)"),
    "silu const": Case("m = Mul(x, k) g = Sigmoid(m) y = Mul(x, g)", {"k": (4, 1, 1)}),
    "silu div": Case("m = Div(x, k) g = Sigmoid(m) y = Mul(x, g)", {"k": _DIVISORS}),
    "hardswish": Case("y = HardSwish(x)"),
    "gelu": Case(
        "a = Mul(x, h) b = Mul(x, s) c = Erf(b) d = Add(c, one) y = Mul(a, d)",
        {"h": number(0.5), "s": number(0.7071), "one": number(1)},
    ),
    "concat": Case(LAYER + "y = Concat<axis=1>(x, l)", WEIGHTS),
    "concat relu": Case(LAYER + "r = Relu(l) y = Concat<axis=1>(r, x)", WEIGHTS),
    "concat self": Case("y = Concat<axis=1>(x, x)"),
    "concat spatial": Case(LAYER + "y = Concat<axis=2>(x, l)", WEIGHTS),
    "split": Case("a, b = Split<axis=1>(x) r = Relu(a) y = Concat<axis=1>(r, b)"),
    "split add": Case("a, b = Split<axis=1>(x) y = Add(a, b)"),
    "shuffle": Case(
        "a = Reshape(x, s1) b = Transpose<perm=[0,2,1,3,4]>(a) y = Reshape(b, s2)",
        {"s1": ints(1, 2, 2, 8, 8), "s2": ints(1, 4, 8, 8)},
    ),
    "shuffle add": Case(
        "a = Reshape(x, s1) b = Transpose<perm=[0,2,1,3,4]>(a) c = Reshape(b, s2) y = Add(c, x)",
        {"s1": ints(1, 2, 2, 8, 8), "s2": ints(1, 4, 8, 8)},
    ),
    "flatten": Case("y = Flatten(x)"),
    "reshape flatten": Case("y = Reshape(x, s)", {"s": ints(1, -1)}),
    "reshape zero": Case("y = Reshape(x, s)", {"s": ints(0, -1)}),
    "pool flatten": Case("p = GlobalAveragePool(x) y = Flatten(p)"),
    "mean": Case("p = ReduceMean<axes=[2,3], keepdims=0>(x) y = Relu(p)"),
    "mean keep": Case("y = ReduceMean<axes=[2,3]>(x)"),
    "squeeze": Case("p = GlobalAveragePool(x) y = Squeeze(p, a)", {"a": ints(2, 3)}),
    "transposed": Case("t = Transpose<perm=[0,2,3,1]>(x) y = MatMul(t, w)", {"w": (4, 6)}),
    "layernorm": Case(
        "t = Transpose<perm=[0,2,3,1]>(x) n = LayerNormalization(t, g, c) y = MatMul(n, w)",
        {"w": (4, 6), "g": (4,), "c": (4,)},
    ),
    "layernorm twice": Case(
        "t = Transpose<perm=[0,2,3,1]>(x) n = LayerNormalization(t, g, c) m = MatMul(n, "
        "w) a = Add(t, m) p = LayerNormalization(a, h, d) y = MatMul(p, v)",
        {"w": (4, 4), "g": (4,), "c": (4,), "h": (4,), "d": (4,), "v": (4, 3)},
    ),
    "depthwise": Case("d = Conv<group=4, pads=[1,1,1,1]>(x, k, kb) y = Relu(d)", {"k": (4, 1, 3, 3), "kb": (4,)}),
    "depthwise residual": Case(
        "d = Conv<group=4, pads=[1,1,1,1]>(x, k, kb) y = Add(x, d)", {"k": (4, 1, 3, 3), "kb": (4,)}
    ),
    "multiplier": Case("y = Conv<group=4>(x, k)", {"k": (8, 1, 1, 1)}),
    "grouped": Case("y = Conv<group=2>(x, k)", {"k": (4, 2, 1, 1)}),
    "se": Case(
        "p = GlobalAveragePool(x) a = Conv(p, w, b) r = Relu(a) c = Conv(r, v, d) g = Sigmoid(c) y = Mul(x, g)",
        {**WEIGHTS, "v": (4, 4, 1, 1), "d": (4,)},
    ),
    "clip6": Case("y = Clip(x, z, s)", {"z": number(0), "s": number(6)}),
    "clip sym": Case("y = Clip(x, z, s)", {"z": number(-1), "s": number(1)}),
    "prelu": Case("y = PRelu(x, s)", {"s": (4, 1, 1)}),
    "max two": Case(LAYER + "y = Max(x, l)", WEIGHTS),
    "sub": Case(LAYER + "y = Sub(x, l)", WEIGHTS),
    "sum three": Case(LAYER + "r = Relu(l) y = Sum(x, l, r)", WEIGHTS),
    "mul const": Case("y = Mul(x, k)", {"k": (4, 1, 1)}),
    "mul scalar": Case("y = Mul(x, k)", {"k": number(3)}),
    "add const": Case("y = Add(x, k)", {"k": (4, 1, 1)}),
    "add scalar": Case("y = Add(x, k)", {"k": number(3)}),
    "add map": Case("y = Add(x, k)", {"k": (8, 8)}),
    "div": Case("y = Div(x, k)", {"k": _DIVISORS}),
    "slice": Case("y = Slice(x, s, t, a)", {"s": ints(1), "t": ints(3), "a": ints(1)}),
    "slice space": Case("y = Slice(x, s, t, a)", {"s": ints(1), "t": ints(3), "a": ints(2)}),
    "gather": Case("y = Gather<axis=1>(x, i)", {"i": ints(2, 0, 1)}),
    "gather space": Case("y = Gather<axis=2>(x, i)", {"i": ints(2, 0, 1)}),
    "unsqueeze": Case("p = GlobalAveragePool(x) q = Squeeze(p, a) u = Unsqueeze(q, a) y = Relu(u)", {"a": ints(2, 3)}),
    "expand": Case("p = GlobalAveragePool(x) y = Expand(p, s)", {"s": ints(1, 4, 8, 8)}),
    "resize": Case('y = Resize<mode="nearest">(x, , s)', {"s": np.array([1, 1, 2, 2], np.float32)}),
    "pad": Case("y = Pad(x, p)", {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "pad value": Case("y = Pad(x, p, v)", {"p": ints(0, 0, 1, 1, 0, 0, 1, 1), "v": number(2)}),
    "pad reflect": Case('y = Pad<mode="reflect">(x, p)', {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "pad channels": Case("y = Pad(x, p)", {"p": ints(0, 1, 0, 0, 0, 0, 0, 0)}),
    "d2s": Case("a = DepthToSpace<blocksize=2>(x) y = Relu(a)"),
    "s2d": Case("y = SpaceToDepth<blocksize=2>(x)"),
    "tile": Case("y = Tile(x, t)", {"t": ints(1, 2, 1, 1)}),
    "maxpool": Case("y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "avgpool": Case("y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "lppool": Case("y = LpPool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "globallp": Case("y = GlobalLpPool(x)"),
    "reducemax": Case("y = ReduceMax<axes=[2,3]>(x)"),
    "reducesum": Case("y = ReduceSum<keepdims=1>(x, a)", {"a": ints(2, 3)}),
    "reducel1": Case("y = ReduceL1<axes=[2,3]>(x)"),
    "reducel2 channels": Case("y = ReduceL2<axes=[1]>(x)"),
    "softmax": Case("y = Softmax<axis=1>(x)"),
    "instancenorm": Case("y = InstanceNormalization(x, g, c)", {"g": (4,), "c": (4,)}),
    "convtranspose": Case("t = ConvTranspose(x, k, kb) y = Relu(t)", {"k": (4, 4, 2, 2), "kb": (4,)}),
    "two convs": Case(
        "a = Conv(x, w, b) r = Relu(a) c = Conv(r, v, d) s = Relu(c) y = Conv(s, u, f)",
        {**WEIGHTS, "v": (6, 4, 1, 1), "d": (6,), "u": (4, 6, 1, 1), "f": (4,)},
    ),
    "inverted": Case(
        "a = Conv(x, w6, b6) r = Clip(a, z, s) d = Conv<group=6>(r, "
        "k, kb) q = Clip(d, z, s) c = Conv(q, v, f) y = Add(x, c)",
        {
            "w6": (6, 4, 1, 1),
            "b6": (6,),
            "z": number(0),
            "s": number(6),
            "k": (6, 1, 1, 1),
            "kb": (6,),
            "v": (4, 6, 1, 1),
            "f": (4,),
        },
    ),
    "attention": Case(
        "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) kt = Transpose<perm=[0,2,1]>(k) "
        "s = MatMul(q, kt) p = Softmax(s) a = MatMul(p, v) y = MatMul(a, wo)",
        {"wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "wo": (8, 8)},
        shape=(1, 6, 8),
    ),
    "mha": Case(
        "q = MatMul(x, wq) r = Reshape(q, sh) t = Transpose<perm=[0,2,1,3]>(r) u = Relu(t) "
        "v = Transpose<perm=[0,2,1,3]>(u) w = Reshape(v, sb) y = MatMul(w, wo)",
        {"wq": (8, 8), "wo": (8, 8), "sh": ints(1, 6, 2, 4), "sb": ints(1, 6, 8)},
        shape=(1, 6, 8),
    ),
    "mlp": Case(
        "a = MatMul(x, wq) b = Add(a, bq) r = Relu(b) y = MatMul(r, wo)",
        {"wq": (8, 12), "bq": (12,), "wo": (12, 8)},
        shape=(1, 6, 8),
    ),
    "glu": Case(
        "a = MatMul(x, wq) b = MatMul(x, wk) g = Sigmoid(b) y = Mul(a, g)",
        {"wq": (8, 8), "wk": (8, 8)},
        shape=(1, 6, 8),
    ),
    "swiglu": Case(
        "a = MatMul(x, wq) b = MatMul(x, wk) g = Sigmoid(b) h = Mul(b, g) y = Mul(a, h)",
        {"wq": (8, 8), "wk": (8, 8)},
        shape=(1, 6, 8),
    ),
    "abs": Case("y = Abs(x)"),
    "neg": Case("y = Neg(x)"),
    "celu": Case("y = Celu(x)"),
    "elu": Case("y = Elu(x)"),
    "floor": Case("y = Floor(x)"),
    "dropout": Case("y = Dropout(x)"),
    "sqrt": Case("a = Abs(x) y = Sqrt(a)"),
    "exp": Case("y = Exp(x)"),
}


def model_of(case: Case) -> onnx.ModelProto:
    """Return the case behind a layer and a Relu, and in front of a layer."""
    random = np.random.default_rng(len(case.body))

    def weight(*shape: int) -> np.ndarray:
        spread = 10 ** random.uniform(-1, 1, (shape[0], *[1] * (len(shape) - 1)))
        array: np.ndarray = (random.standard_normal(shape) * spread).astype(np.float32)
        return array

    constants = {
        name: random.standard_normal(value).astype(np.float32) if isinstance(value, tuple) else value
        for name, value in case.constants.items()
    }
    if len(case.shape) == 4:
        first = "first = Conv(input, first_w, first_b) x = Relu(first)"
        constants |= {"first_w": weight(case.shape[1], case.shape[1], 1, 1), "first_b": weight(case.shape[1])}
    else:
        first = "product = MatMul(input, first_w) first = Add(product, first_b) x = Relu(first)"
        constants |= {"first_w": weight(case.shape[-1], case.shape[-1]), "first_b": weight(case.shape[-1])}
    shape = _shape_of_y(first, case, constants)
    if len(shape) == 4:
        last, constants["last_w"] = "output = Conv(y, last_w)", weight(5, shape[1], 1, 1)
    else:
        last, constants["last_w"] = "output = MatMul(y, last_w)", weight(shape[-1], 5)
    return _parsed(case.shape, f"{first} {case.body} {last}", "output", constants)


def _parsed(shape: tuple[int, ...], body: str, output: str, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    lengths = ",".join(map(str, shape))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{lengths}] input) => (float {output}) {{ {body} }}'
    proto = parser.parse_model(text)
    used = set(re.findall(r"\w+", body))
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in used
    )
    return proto


def _shape_of_y(first: str, case: Case, constants: dict[str, np.ndarray]) -> tuple[int, ...]:
    proto = _parsed(case.shape, f"{first} {case.body}", "y", constants)
    return run(proto, samples_of(case)[0])["y"].shape


def samples_of(case: Case) -> Samples:
    random = np.random.default_rng(0)
    return [{"input": (1 + i) * np.abs(random.standard_normal(case.shape)).astype(np.float32)} for i in range(3)]


def equalized(model: FloatModel, samples: Samples) -> Iterator[tuple[str, FloatModel]]:
    """Yield the names of all equalizations and what they return."""
    data, powers = calibration_data(samples, model.inputs), TensorSpec(scale=PowerOfTwoScale())
    types, smoothing = WeightActivationTypes(powers, powers, OwnBias(powers)), SmoothQuant(alpha=0.5)
    yield "cross_layer", equalize(model, EqualizeOptions(CrossLayer()))
    seen = observe(model, data, ObserveOptions(), joint_needs(model, types))
    joint = equalize_jointly(model, seen, JointEqualization(gain=1.0), types)
    yield "joint", joint
    seen = observe(model, data, ObserveOptions(), smooth_needs(model, smoothing))
    yield "smooth", smooth(model, seen, smoothing, types)
    yield "powers", fit_powers(model, seen, FitPowers(), types)
    yield "powers_after_joint", fit_powers(joint, observe(joint, data, ObserveOptions()), FitPowers(), types)
    yield "groups", group_channels(model, ChannelGroups(gain=1.0, tolerance=0.0), TensorSpec())
    yield "rotate", rotate(model, Rotation())


def changed_by(name: str) -> tuple[str, ...]:
    """Return the equalizations that change a case; each must compute the same in onnxruntime."""
    model, samples = prepare(model_source(model_of(CASES[name])), PrepareOptions()), samples_of(CASES[name])
    before = [run(model.model, sample)["output"] for sample in samples]
    tolerance = 1e-4 * np.abs(before).max()
    changed = []
    for equalization, result in equalized(model, samples):
        if fingerprint(result) != fingerprint(model):
            changed.append(equalization)
        for sample, expected in zip(samples, before, strict=True):
            actual = run(result.model, sample)["output"]
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=tolerance, err_msg=equalization)
    return tuple(changed)


if __name__ == "__main__":
    FILE.write_text("".join(f"{name}: {' '.join(changed_by(name))}\n" for name in CASES), encoding="utf-8")
