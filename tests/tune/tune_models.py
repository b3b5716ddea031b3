"""Small networks with every kind of layer that can be tuned, and tasks made from them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from quantry.data.open_data import calibration_data
from quantry.graph.load import model_source
from quantry.observe import observe
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import (
    DataType,
    MinMSE,
    ObserveOptions,
    PerChannel,
    PlanOptions,
    PrepareOptions,
    ScaleOptions,
    TensorSpec,
)
from quantry.scale import scale
from quantry.tune import TuneTask

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 4, 9, 8] x) => (float[n, 5] y)
{
    a = Conv <strides = [2, 1], pads = [1, 0, 0, 2], kernel_shape = [3, 3]> (x, wa, ba)
    ar = Relu (a)
    b = Conv <group = 6, pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (ar, wb, bb)
    br = Clip (b, zero, six)
    c = ConvTranspose <group = 2, strides = [2, 1], pads = [1, 0, 0, 1], kernel_shape = [3, 2]> (br, wc, bc)
    i = InstanceNormalization <epsilon = 0.001> (c, wi, bi)
    s = Sigmoid (i)
    m = Mul (i, s)
    g = GlobalAveragePool (m)
    f = Flatten (g)
    h = MatMul (f, wh)
    l = LayerNormalization (h, wl, bl)
    y = Gemm <transB = 1> (l, wy, by)
}
"""

SHAPES = {
    "wa": (6, 4, 3, 3), "ba": (6,), "wb": (6, 1, 3, 3), "bb": (6,), "wc": (6, 4, 3, 2), "bc": (8,),
    "wi": (8,), "bi": (8,), "wh": (8, 7), "wl": (7,), "bl": (7,), "wy": (5, 7), "by": (5,),
}  # fmt: skip

CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, 8, 8] x) => (float[n, 4, 8, 8] y)
{
    a = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, wa, ba)
    r = Relu (a)
    b = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (r, wb, bb)
    t = Relu (b)
    u = Add (r, t)
    y = Conv <kernel_shape = [1, 1]> (u, wc, bc)
}
"""
CHAIN_SHAPES = {"wa": (8, 3, 3, 3), "ba": (8,), "wb": (8, 8, 3, 3), "bb": (8,), "wc": (4, 8, 1, 1), "bc": (4,)}

COARSE = PlanOptions(
    activation=TensorSpec(DataType.INT8, symmetric=False),
    weight=TensorSpec(DataType.INT4, granularity=PerChannel()),
)
"""Weights so coarse that rounding matters."""


def build(text: str, shapes: dict[str, tuple[int, ...]], seed: int = 0) -> onnx.ModelProto:
    random = np.random.default_rng(seed)
    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        values = random.standard_normal(shape) / max(1.0, np.sqrt(np.prod(shape[1:])))
        offset = 1.0 if name in ("wi", "wl") else 0.0
        model.graph.initializer.append(numpy_helper.from_array((values + offset).astype(np.float32), name))
    if "six" in text:
        model.graph.initializer.append(numpy_helper.from_array(np.float32(0.0), "zero"))
        model.graph.initializer.append(numpy_helper.from_array(np.float32(6.0), "six"))
    return model


def chain() -> onnx.ModelProto:
    return build(CHAIN, CHAIN_SHAPES)


def network() -> onnx.ModelProto:
    return build(NETWORK, SHAPES)


def inputs(shape: tuple[int, ...], count: int = 12, seed: int = 1) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    # Neighbouring pixels and channels go together, as in pictures; otherwise there is nothing to feed errors back into.
    noise = random.standard_normal((count, *shape)).astype(np.float32)
    smooth = noise + np.roll(noise, 1, 2) + np.roll(noise, 1, 3) + noise.mean(1, keepdims=True)
    return [{"x": sample[None].astype(np.float32)} for sample in smooth]


def task_of(
    model: onnx.ModelProto, samples: Sequence[dict[str, np.ndarray]], options: PlanOptions = COARSE
) -> TuneTask:
    prepared = prepare(model_source(model), PrepareOptions())
    data = calibration_data(list(samples), prepared.inputs)
    planned = plan(prepared, options)
    statistics = observe(prepared, data, ObserveOptions())
    params = scale(prepared, statistics, planned, ScaleOptions(activation=MinMSE(), weight=MinMSE()))
    return TuneTask(prepared, prepared, planned, params, data)


def with_options(task: TuneTask, **changes: object) -> TuneTask:
    return replace(task, **changes)
