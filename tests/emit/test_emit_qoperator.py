from dataclasses import replace

import emit_cases as cases
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from quantry.data.open_data import calibration_data
from quantry.emit import emit
from quantry.errors import RecipeError
from quantry.graph.load import model_source
from quantry.observe import observe
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import (
    DataType,
    EmitOptions,
    ObserveOptions,
    OwnBias,
    PlanOptions,
    PrepareOptions,
    Qdq,
    QOperator,
    Recipe,
    ScaleOptions,
    TensorSpec,
)
from quantry.runtime.sessions import run_session, simulation_session
from quantry.scale import scale

BOUNDED = ("Relu", "Clip")


def bounded(recipe: Recipe) -> Recipe:
    """Let only Relu and Clip join the operator before them, which is what integer kernels can do."""
    return replace(recipe, plan=replace(recipe.plan, fused_activations=BOUNDED, force_pass_through=True))


RECIPES = {
    "xint8": bounded(cases.XINT8),
    "u8s8": bounded(cases.types(DataType.UINT8, DataType.INT8)),
    "u8s8-per-channel": bounded(cases.types(DataType.UINT8, DataType.INT8, per_channel=True)),
    "u8u8": bounded(cases.types(DataType.UINT8, DataType.UINT8)),
    "s8s8": bounded(cases.types(DataType.INT8, DataType.INT8)),
    "s8s8-symmetric-per-channel": bounded(cases.types(DataType.INT8, DataType.INT8, per_channel=True, symmetric=True)),
}
EXPECTED = {
    "QLinearConv": 3,
    "QLinearSigmoid": 1,
    "QLinearMul": 1,
    "QLinearAdd": 1,
    "QLinearLeakyRelu": 1,
    "QLinearAveragePool": 1,
    "QLinearConcat": 1,
    "QLinearGlobalAveragePool": 1,
    "QGemm": 1,
    "MaxPool": 1,
    "Transpose": 2,
    "Flatten": 1,
    "QuantizeLinear": 1,
    "DequantizeLinear": 2,
}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_operator_with_a_kernel_computes_on_integers(recipe: Recipe, opset: int) -> None:
    model = cases.proto(cases.emitted(recipe, QOperator(), opset))
    onnx.checker.check_model(model, full_check=True)
    counts: dict[str, int] = {}
    for node in model.graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    counts.pop("Clip", None)
    assert counts == EXPECTED
    assert all(
        entry.data_type != onnx.TensorProto.FLOAT or not entry.dims or "scale" in entry.name
        for entry in model.graph.initializer
    )


@pytest.mark.parametrize("opset", [13, 21])
def test_power_of_two_model_computes_what_qdq_computes(opset: int) -> None:
    expected = cases.outputs(cases.emitted(RECIPES["xint8"], Qdq(), opset))
    actual = cases.outputs(cases.emitted(RECIPES["xint8"], QOperator(), opset))
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_integer_kernels_stay_within_one_step_of_qdq(recipe: Recipe) -> None:
    expected = cases.outputs(cases.emitted(recipe, Qdq()))
    actual = cases.outputs(cases.emitted(recipe, QOperator()))
    for name, values in expected.items():
        step = float(cases.params_of(recipe).tensors[name].scale)
        assert np.abs(actual[name] - values).max() <= 1.01 * step


# One operator each: text of the node, constants it reads, integer operator expected, steps it may differ from QDQ.
OPERATORS = {
    "MatMul": ("y = MatMul(x, m)", "QLinearMatMul", 1),
    "MatMulOfComputed": ("t = Transpose<perm = [0,1,3,2]>(x) y = MatMul(x, t)", "QLinearMatMul", 1),
    "Softmax": ("y = Softmax<axis = -1>(x)", "QLinearSoftmax", 1),
    "SoftmaxOverChannels": ("y = Softmax<axis = 1>(x)", "QLinearSoftmax", 1),
    "Sigmoid": ("y = Sigmoid(x)", "QLinearSigmoid", 0),
    "LeakyRelu": ("y = LeakyRelu<alpha = 0.2>(x)", "QLinearLeakyRelu", 0),
    "AddOfConstant": ("y = Add(x, k)", "QLinearAdd", 1),
    "MulOfItself": ("y = Mul(x, x)", "QLinearMul", 1),
    "AveragePool": ("y = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(x)", "QLinearAveragePool", 1),
    "GlobalAveragePool": ("y = GlobalAveragePool(x)", "QLinearGlobalAveragePool", 1),
    "Concat": ("t = Sigmoid(x) c = Concat<axis = 1>(x, t) y = LeakyRelu<alpha = 0.5>(c)", "QLinearConcat", 1),
    "MaxPool": ("y = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(x)", "MaxPool", 0),
    "Reshape": ("y = Reshape(x, flat)", "Reshape", 0),
    "Transpose": ("y = Transpose<perm = [0,2,3,1]>(x)", "Transpose", 0),
    "Squeeze": ("y = Squeeze(x, axis)", "Squeeze", 0),
    "Unsqueeze": ("y = Unsqueeze(x, axis)", "Unsqueeze", 0),
    "Slice": ("y = Slice(x, axis, two, axis)", "Slice", 0),
    "Split": ("y, z = Split<axis = 1>(x)", "Split", 0),
    "Gather": ("y = Gather<axis = 1>(x, two)", "Gather", 0),
    "Expand": ("y = Expand(x, wide)", "Expand", 0),
    "Tile": ("y = Tile(x, times)", "Tile", 0),
    "Pad": ("y = Pad(x, pads)", "Pad", 0),
    "PadOfZero": ("y = Pad(x, pads, zero)", "Pad", 0),
    "PadOfEdge": ('y = Pad<mode = "edge">(x, pads)', "Pad", 0),
    "Resize": ('y = Resize<mode = "nearest">(x, , factors)', "Resize", 0),
    "ReduceMax": ("y = ReduceMax<axes = [2,3]>(x)", "ReduceMax", 0),
    "ConvWithClip": ("t = Conv(x, w) y = Clip(t, low, high)", "QLinearConv", 1),
    "ConvWithRelu": ("t = Conv(x, w) y = Relu(t)", "QLinearConv", 1),
    "GemmWithoutBias": ("t = Flatten<axis = 3>(x) y = Gemm(t, m)", "QGemm", 1),
}
INTEGERS = {
    "flat": [1, -1],
    "axis": [0],
    "two": [1],
    "wide": [2, 4, 6, 6],
    "times": [1, 2, 1, 1],
    "pads": [0, 0, 1, 2, 0, 0, 2, 1],
}


def one_operator(
    body: str, options: PlanOptions
) -> tuple[dict[type, dict[str, np.ndarray]], set[str], dict[str, float]]:
    """Return outputs by format, the operators of the QOperator model, and the step of each output."""
    names = ["y", "z"] if "z =" in body else ["y"]
    declared = ", ".join(f"float[a_{name}] {name}" for name in (*names, "norm"))
    rng = np.random.default_rng(3)
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,6,6] x) => ({declared}) {{ {body} norm = ReduceL2(x) }}'
    )
    model = onnx.parser.parse_model(text)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    constants = {name: np.array(values, np.int64) for name, values in INTEGERS.items()}
    constants |= {"m": rng.normal(size=(6, 5)), "k": rng.normal(size=(1, 4, 1, 1)), "w": rng.normal(size=(3, 4, 3, 3))}
    constants |= {
        "zero": np.array(0.0),
        "low": np.array(-0.7),
        "high": np.array(3.1),
        "factors": np.array([1, 1, 2, 2.0]),
    }
    for name, values in constants.items():
        typed = values if values.dtype == np.int64 else values.astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(typed, name))
    prepared = prepare(model_source(model), PrepareOptions())
    data = [{"x": rng.normal(size=(1, 4, 6, 6)).astype(np.float32)} for _ in range(3)]
    planned = plan(prepared, options)
    statistics = observe(prepared, calibration_data(data, prepared.inputs), ObserveOptions())
    params = scale(prepared, statistics, planned, ScaleOptions())
    results, operators = {}, set()
    for format_ in (Qdq(), QOperator()):
        written = emit(prepared, planned, params, EmitOptions(format_), {})
        session = simulation_session(written.to_bytes(), threads=1)
        runs = [run_session(session, sample) for sample in data]
        results[type(format_)] = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
        operators = {node.op_type for node in written.model.graph}
    return results, operators, {name: float(params.tensors[name].scale) for name in names}


@pytest.mark.parametrize("dtype", [DataType.UINT8, DataType.INT8])
@pytest.mark.parametrize("case", OPERATORS)
def test_operator_on_integers_gives_what_it_gives_between_pairs(case: str, dtype: DataType) -> None:
    body, operator, steps = OPERATORS[case]
    options = PlanOptions(activation=TensorSpec(dtype, symmetric=False), force_pass_through=True)
    results, operators, scales = one_operator(body, options)
    assert operator in operators
    for name in scales:
        expected = results[Qdq][name]
        difference = np.abs(results[QOperator][name] - expected).max() / scales[name]
        assert difference <= steps + 0.01


def test_operator_without_an_integer_kernel_stays_float_between_pairs() -> None:
    results, operators, _ = one_operator("t = Tanh(x) y = Sigmoid(t)", PlanOptions())
    assert {"DequantizeLinear", "Tanh", "QuantizeLinear", "QLinearSigmoid"} <= operators
    np.testing.assert_array_equal(results[QOperator]["y"], results[Qdq]["y"])


def test_fused_activation_that_no_kernel_computes_stays_float_and_agrees() -> None:
    fused = replace(cases.XINT8, plan=replace(cases.XINT8.plan, fused_activations=("Relu", "LeakyRelu")))
    model = cases.emitted(fused, QOperator())
    assert {"QLinearLeakyRelu", "QLinearConv"} <= {node.op_type for node in model.model.graph}
    for name, values in cases.outputs(cases.emitted(fused, Qdq())).items():
        np.testing.assert_array_equal(cases.outputs(model)[name], values)


def test_bias_off_the_accumulators_grid_keeps_the_convolution_float() -> None:
    recipe = bounded(cases.types(DataType.UINT8, DataType.INT8))
    own = replace(recipe, plan=replace(recipe.plan, bias=OwnBias(TensorSpec(DataType.INT8))))
    operators = {node.op_type for node in cases.emitted(own, QOperator()).model.graph}
    assert "Conv" in operators
    assert "QLinearConv" not in operators


@pytest.mark.parametrize(
    ("activation", "weight", "message"),
    [
        (DataType.INT16, DataType.INT8, r"plan\.activation\.dtype must be int8 or uint8 with emit\.format = QOperator"),
        (DataType.UINT8, DataType.INT4, r"plan\.weight\.dtype must be int8 or uint8 with emit\.format = QOperator"),
        (DataType.INT8, DataType.UINT8, r"plan\.weight\.dtype must be int8 with .* plan\.activation\.dtype = int8"),
    ],
)
def test_types_without_a_kernel_raise_before_any_work(activation: DataType, weight: DataType, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(plan=PlanOptions(TensorSpec(activation), TensorSpec(weight)), emit=EmitOptions(QOperator()))


def test_same_plan_gives_the_same_bytes() -> None:
    model = cases.emitted(RECIPES["u8s8"], QOperator())
    assert model.to_bytes() == cases.emitted(RECIPES["u8s8"], QOperator()).to_bytes()
