"""One reference network and the way from it to a quantized model, for the tests of every format."""

from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from quantry.data.open_data import calibration_data
from quantry.emit import emit
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.quantized_model import QuantizedModel
from quantry.numerics.tensor_params import QuantParams
from quantry.observe import observe
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import (
    PRESETS,
    DataType,
    EmitOptions,
    Format,
    MixOptions,
    ObserveOptions,
    OwnBias,
    PerChannel,
    PlanOptions,
    PowerOfTwoScale,
    PrepareOptions,
    Recipe,
    TensorSpec,
    TuneOptions,
)
from quantry.runtime.sessions import run_session, simulation_session
from quantry.scale import scale

CNN = """
<ir_version: 8, opset_import: ["" : {opset}]>
cnn (float[N,3,12,12] x) => (float[N,5] classes, float[N,8,6,6] features) {{
    [stem] s0 = Conv<pads = [1,1,1,1], strides = [2,2]>(x, stem_w, stem_b)
    [gate] s1 = Sigmoid(s0)
    [silu] s2 = Mul(s0, s1)
    [depthwise] d0 = Conv<group = 8, pads = [1,1,1,1]>(s2, depth_w, depth_b)
    [relu] d1 = Relu(d0)
    [point] p0 = Conv(d1, point_w, point_b)
    [residual] features = Add(p0, s2)
    [leaky] l0 = LeakyRelu<alpha = 0.1>(features)
    [pool] m0 = MaxPool<kernel_shape = [2,2], strides = [2,2]>(l0)
    [average] a0 = AveragePool<kernel_shape = [2,2], strides = [2,2]>(features)
    [join] j0 = Concat<axis = 1>(m0, a0)
    [turn] t0 = Transpose<perm = [0,2,3,1]>(j0)
    [back] t1 = Transpose<perm = [0,3,1,2]>(t0)
    [global] g0 = GlobalAveragePool(t1)
    [flat] f0 = Flatten(g0)
    [fc] classes = Gemm<transB = 1>(f0, fc_w, fc_b)
}}
"""
SHAPES = {
    "stem_w": (8, 3, 3, 3),
    "stem_b": (8,),
    "depth_w": (8, 1, 3, 3),
    "depth_b": (8,),
    "point_w": (8, 8, 1, 1),
    "point_b": (8,),
    "fc_w": (5, 16),
    "fc_b": (5,),
}

POWER_OF_TWO = PowerOfTwoScale()
XINT8 = Recipe(
    plan=PlanOptions(
        activation=TensorSpec(DataType.UINT8, scale=POWER_OF_TWO),
        weight=TensorSpec(DataType.INT8, scale=POWER_OF_TWO),
        bias=OwnBias(TensorSpec(DataType.INT8, scale=POWER_OF_TWO)),
        force_pass_through=True,
    )
)


def types(activation: DataType, weight: DataType, *, per_channel: bool = False, symmetric: bool = False) -> Recipe:
    """Return a recipe with float scales and these types."""
    weight_spec = TensorSpec(weight, granularity=PerChannel()) if per_channel else TensorSpec(weight)
    wide = activation.bits + weight.bits > 24
    options = PlanOptions(activation=TensorSpec(activation, symmetric=symmetric), weight=weight_spec)
    return Recipe(plan=replace(options, bias=OwnBias(TensorSpec(DataType.INT32))) if wide else options)


def distinct_presets() -> list[str]:
    """Return the names of presets, of several that write the same before any layer is tuned or changed the first."""
    names: dict[Recipe, str] = {}
    for name, preset in PRESETS.items():
        names.setdefault(replace(preset.recipe, tune=TuneOptions(), mix=MixOptions()), name)
    return list(names.values())


@cache
def float_bytes(opset: int = 17) -> bytes:
    """Return the reference network with seeded weights."""
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(CNN.format(opset=opset))
    for name, shape in SHAPES.items():
        fan_in = max(1, int(np.prod(shape[1:])))
        weight = (rng.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model.SerializeToString()


@cache
def samples(count: int = 4) -> tuple[dict[str, np.ndarray], ...]:
    """Return seeded inputs."""
    rng = np.random.default_rng(1)
    return tuple({"x": rng.normal(size=(2, 3, 12, 12)).astype(np.float32)} for _ in range(count))


@cache
def prepared(opset: int = 17) -> FloatModel:
    """Return the reference network after the prepare stage."""
    return prepare(model_source(float_bytes(opset)), PrepareOptions())


@cache
def params_of(recipe: Recipe, opset: int = 17) -> QuantParams:
    """Return the parameters that the recipe's plan gets."""
    model = prepared(opset)
    statistics = observe(model, calibration_data(list(samples()), model.inputs), ObserveOptions())
    return scale(model, statistics, plan(model, recipe.plan), recipe.scale)


def emitted(recipe: Recipe, format_: Format, opset: int = 17) -> QuantizedModel:
    """Return the reference network, planned by a recipe and written in a format."""
    Recipe(plan=recipe.plan, scale=recipe.scale, emit=EmitOptions(format_))  # refuses what does not go together
    model = prepared(opset)
    return emit(model, plan(model, recipe.plan), params_of(recipe, opset), EmitOptions(format_), {})


def proto(model: QuantizedModel) -> onnx.ModelProto:
    """Return the model as onnx reads it."""
    return onnx.load_from_string(model.to_bytes())


def outputs(model: QuantizedModel | bytes) -> dict[str, np.ndarray]:
    """Return what the safe session computes on the samples."""
    session = simulation_session(model if isinstance(model, bytes) else model.to_bytes(), threads=1)
    runs = [run_session(session, sample) for sample in samples()]
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def sqnr(reference: np.ndarray, other: np.ndarray) -> float:
    """Return the signal to noise ratio in decibels."""
    noise = max(float(((reference - other) ** 2).sum()), 1e-30)
    return 10 * float(np.log10((reference**2).sum() / noise))
